//! Wire and YAML types of dstack: configurations, profiles, runs, jobs, fleets, instances, offers.
