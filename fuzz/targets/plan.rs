//! Runs: planned, or refused with a text.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    use dstack_model::runs::RunSpec;
    use dstack_plan::jobs::{JobContext, Target, job_specs};
    let Ok((configuration, _)) = dstack_model::yaml::parse(text, "a.dstack.yml") else { return };
    let server = dstack_plan::ServerDefaults::default();
    let Ok(spec) = dstack_plan::validate::effective_run_spec(RunSpec::new(configuration), Some("key"), &server) else {
        return;
    };
    // Thousands of nodes are no use here.
    if dstack_plan::fleets::nodes_required(&spec) > 100 {
        return;
    }
    let images = Default::default();
    let context = JobContext { server: &server, images: &images, target: Target::Container };
    if let Ok(jobs) = job_specs(&spec, 0, None, &context) {
        for job in &jobs {
            let request = dstack_plan::placement::Request::new(&spec, job);
            let _ = dstack_plan::fleets::new_capacity_outside_fleets(&request);
        }
    }
});
