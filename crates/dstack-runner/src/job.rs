//! A job from `POST /api/run` to its last state.
//!
//! Order (dstack 0.22.5's): user and working directory, credentials, repo, files, connection tracking, `running`,
//! commands, clean-up.

mod ending;
mod prepare;
mod supervise;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use dstack_agent_api::runner::{JobInfo, JobState, JobStateEvent};
use dstack_system::task;

use crate::inactivity::Connections;
use crate::output::{Quota, Sinks};
use crate::pty;
use crate::shared::{Core, JobSsh, Submitted};

pub use ending::Ending;
use prepare::{Place, Prepared};

/// Starts the job; returns as soon as user and working directory are known. `None`: they could not be determined, and
/// the job has failed already.
pub async fn start(core: Arc<Core>, submitted: Submitted, ssh: Arc<dyn JobSsh>) -> Option<JobInfo> {
    core.log.attach(&core.spool);
    for notice in &core.settings.notices {
        core.log.warn(notice);
        core.spool.log(format!("{notice}\n").as_bytes());
        core.history.append(format!("{notice}\r\n").as_bytes());
    }
    let (for_place, body) = (Arc::clone(&core), Arc::clone(&submitted.body));
    let place = task::blocking("resolve job", move || Place::resolve(&for_place, &body)).await;
    let place = place.unwrap_or_else(|_| Err(Ending::failed()));
    let info = place.as_ref().ok().map(Place::info);
    if let Some(info) = &info {
        core.set_info(info.clone());
    }
    task::spawn("job", async move {
        let job = Job {
            core: Arc::clone(&core),
            submitted,
            ssh,
        };
        // In a task of its own: a panic ends the job as failed and not the runner.
        let ending = match place {
            Ok(place) => task::spawn("job steps", job.run(place))
                .await
                .ok()
                .flatten()
                .unwrap_or_else(Ending::failed),
            Err(ending) => ending,
        };
        core.log.info(format_args!("job ended: {ending}"));
        core.spool.state(JobStateEvent {
            watched: core.is_watched(),
            ..ending.into()
        });
        core.finish();
    });
    info
}

struct Job {
    core: Arc<Core>,
    submitted: Submitted,
    ssh: Arc<dyn JobSsh>,
}

impl Job {
    async fn run(self, place: Place) -> Ending {
        let mut stop = self.core.watch_stop();
        let prepared = tokio::select! {
            prepared = self.prepare(&place) => prepared,
            () = stopped(&mut stop) => Err(Ending::stopped()),
        };
        match prepared {
            Ok(prepared) => self.run_commands(&place, prepared, stop).await,
            Err(ending) => ending,
        }
    }

    async fn prepare(&self, place: &Place) -> Result<Prepared, Ending> {
        // Set when this future is dropped because the job is stopped.
        let cancel = CancelOnDrop::default();
        let (core, body, ssh) = (
            Arc::clone(&self.core),
            Arc::clone(&self.submitted.body),
            Arc::clone(&self.ssh),
        );
        let (place, cancelled) = (place.clone(), Arc::clone(&cancel.cancelled));
        let work = move || prepare::prepare(&core, &body, &place, &*ssh, cancelled);
        task::blocking("prepare job", work)
            .await
            .unwrap_or_else(|_| Err(Ending::failed()))
    }

    /// `prepared` lives as long as the commands: its credentials go with it.
    async fn run_commands(&self, place: &Place, prepared: Prepared, stop: watch::Receiver<bool>) -> Ending {
        let spec = &self.submitted.body.job_spec;
        let connections: Arc<dyn Connections> = Arc::clone(&self.ssh) as Arc<dyn Connections>;
        let tracking = task::spawn("inactivity", self.core.inactivity.clone().track(connections));
        self.core.spool.state(JobStateEvent {
            state: JobState::Running,
            ..JobStateEvent::default()
        });
        self.core.log.info("running the job's commands");
        let command = place.command(spec.commands.clone(), prepared.env.clone());
        let sinks = Sinks {
            spool: self.core.spool.clone(),
            history: self.core.history.clone(),
            quota: Quota::new(self.submitted.body.log_quota_hour, self.submitted.at),
            stopping: Arc::default(),
        };
        let ending = match pty::spawn(&command) {
            Ok(process) => supervise::supervise(process, sinks, spec.max_duration, stop).await,
            Err(error) => {
                let program = command.argv.first().map_or("the command", String::as_str);
                Ending::not_started(program, &error)
            }
        };
        tracking.abort();
        ending
    }
}

#[derive(Default)]
struct CancelOnDrop {
    cancelled: Arc<AtomicBool>,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Waits until the job is to stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}
