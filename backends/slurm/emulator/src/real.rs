//! What a real Slurm has of ours, by what it prints.

/// What `squeue` is to print of each job: `-o`.
pub const JOBS: &str = "%A %j";

/// Ids and names of jobs that are not over (`squeue -h -o` with [`JOBS`]), and of keys that are let through (`authorized_keys`).
pub fn alive(jobs: &str, authorized_keys: &str) -> Vec<(String, String)> {
    let jobs = jobs.lines().filter_map(|line| line.split_once(' '));
    let mut names: Vec<&str> = authorized_keys
        .lines()
        .filter_map(|line| line.split_once(" dstack-job="))
        .map(|(_, name)| name)
        .collect();
    names.dedup();
    let keys = names
        .into_iter()
        .map(|name| (format!("keys of {name}"), name.to_owned()));
    jobs.map(|(id, name)| (id.to_owned(), name.to_owned()))
        .chain(keys)
        .collect()
}
