//! Hosts of SSH fleets that are simulated in the server's process: how it bears thousands of them, with all of their jobs running,
//! is measured without as many machines. The engine, the store and the API are the real ones; there is no SSH.
//!
//! Every host is set up at once, every job runs until it is stopped, and says each few seconds that it lives.

mod agents;
mod hosts;

use std::sync::Arc;

use dstack_engine::failpoint::NoFailpoints;
use dstack_engine::{Engine, EngineDeps, Settings};
use dstack_server::wiring::{Connected, LogOutput, SqlInputs};
use dstack_server::{BoxFuture, EngineContext, EngineParts, ServerOptions, StartedEngine};
use dstack_store::EngineStore;
use dstack_system::task;

/// Gives a server simulated hosts in place of the way to real ones.
pub fn install(options: &mut ServerOptions) {
    let workers = options.workers.clone();
    options.start_engine = Some(Box::new(move |context| {
        Box::pin(async move {
            match workers {
                Some(workers) => {
                    let started = task::spawn_on(&workers, "start the engine", start(context));
                    started.await?.unwrap_or_else(|| Err(task::Panicked.into()))
                }
                None => start(context).await,
            }
        })
    }));
}

async fn start(context: EngineContext) -> Result<StartedEngine, Box<dyn std::error::Error + Send + Sync>> {
    let jobs = context.jobs.clone();
    let engine = Engine::start(EngineDeps {
        store: Arc::new(context.data.store()) as Arc<dyn EngineStore>,
        agents: Arc::new(agents::ManyHosts::new(Arc::clone(&context.data.clock))),
        hosts: Arc::new(hosts::ReadyHosts),
        backends: Arc::clone(&context.backends),
        output: Arc::new(LogOutput::new(
            &context.data,
            context.settings.log_quota_per_job_hour,
        )),
        inputs: Arc::new(SqlInputs::new(
            jobs.clone(),
            context.data.blobs.clone(),
            &context.settings,
        )),
        services: Arc::new(context.services.clone()),
        clock: Arc::clone(&context.data.clock),
        random: context.data.random.clone(),
        failpoints: Arc::new(NoFailpoints),
        settings: Settings {
            identity: context.identity.clone(),
            ..Settings::default()
        },
    })
    .await?;
    let handle = Arc::new(Connected(engine.clone()));
    let stop = Box::new(move || -> BoxFuture<()> {
        Box::pin(async move {
            engine.stop();
        })
    });
    Ok(StartedEngine {
        parts: EngineParts { handle, jobs },
        stop,
    })
}
