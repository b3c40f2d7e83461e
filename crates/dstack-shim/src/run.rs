//! The agent's life: start, serve, end.

mod choice;
mod listen;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::proof::Gate;
use dstack_agent_api::shim::HostReport;
use dstack_system::{Random, task};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::{Api, router};
use crate::command::SystemCommands;
use crate::components::{self, Components};
use crate::dcgm::Exporter;
use crate::error::StartError;
use crate::gpu::{self, GpuLock, Gpus, SystemFiles, Vendor};
use crate::host;
use crate::keys::HostKeys;
use crate::runtime::docker::{DOCKER, DockerRuntime, DockerSettings};
use crate::runtime::process::{ProcessRuntime, ProcessSettings};
use crate::runtime::{RunnerSettings, Runtime};
use crate::self_termination::{EndingCommand, Needed, end_when_not_needed};
use crate::settings::{RUNNER_PATH, RuntimeChoice, Settings};
use crate::store::Store;
use crate::tasks::{Host, Tasks};
use crate::volumes::HostDisks;

/// So long another agent may take to end that was told to.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_AGAIN: Duration = Duration::from_millis(20);

/// After a signal, open requests have so long.
const GRACE: Duration = Duration::from_secs(5);

/// Runs the agent until it is told to end.
pub async fn run(settings: Settings) -> Result<(), StartError> {
    let home = prepare_home(&settings.home)?;
    let only_one = lock_home(&home).await?;
    crate::log::init(settings.log_level, &home.join("shim.log")).map_err(StartError::State)?;
    let settings = Settings { home, ..settings };
    tracing::info!(version = crate::VERSION, home = %settings.home.display(), "dstack-shim starts");

    let runner = runner_binary(&settings).await?;
    let gpus = gpu::detect(&SystemCommands, &SystemFiles).await;
    let store = Store::new(&settings.home);
    let chosen = choice::choose(&settings, &store)?;
    let runtime = start_runtime(chosen, &settings, &runner, &gpus).await?;
    let tasks = Tasks::new(Host {
        runtime: runtime.clone(),
        store,
        gpus: GpuLock::new(gpus.list.iter().map(|gpu| gpu.id.clone()).collect()),
        keys: HostKeys::default(),
        disks: Arc::new(HostDisks::default()),
    });
    if let Err(error) = tasks.restore().await {
        // Of an engine that is named, whoever starts this agent wants to know at once that it does not answer.
        if settings.runtime != RuntimeChoice::Auto || chosen != DOCKER {
            return Err(StartError::Restore(error));
        }
        tracing::warn!(error = %crate::error::chain(&error), "the agent starts without the container engine, and waits for it");
    }
    let exporter = match gpus.vendor {
        Vendor::Nvidia => {
            Exporter::start(&settings.home, settings.dcgm_port, settings.dcgm_interval_ms).await
        }
        _ => None,
    };
    let report = HostReport {
        host_info: host::inspect(&gpus, existing(runtime.storage())),
        runtime: runtime.name().to_owned(),
        version: crate::VERSION.to_owned(),
        arch: host::arch().to_owned(),
        notices: notices(runtime.as_ref(), &settings),
        executable: dstack_system::file::own_executable().unwrap_or_default(),
    };
    if settings.service
        && let Err(error) = host::write(&settings.home, &report.host_info)
    {
        tracing::error!(%error, "host_info.json not written");
    }
    let needed = Needed::default();
    let api = Arc::new(Api {
        tasks: tasks.clone(),
        components: Components::new(runner.path, settings.shim_binary.clone()),
        instance: host::instance_info(&gpus),
        host: report,
        exporter,
        gate: settings
            .token
            .clone()
            .map(|token| Gate::new(token, Random::system())),
        needed: needed.clone(),
        shutdown: CancellationToken::new(),
        force: CancellationToken::new(),
    });
    let watched = tasks.clone();
    let watching = task::spawn("container watch", async move {
        watched.restore_when_available().await;
        watched.watch().await;
    });
    let waiting = wait_for_end_of_use(&settings, &tasks, &needed);
    let served = serve(&settings, &api).await;
    waiting.into_iter().for_each(|task| task.abort());
    watching.abort();
    // An agent that is started meanwhile need not wait: what is removed, both may delete.
    drop(only_one);
    let _ = tokio::time::timeout(GRACE, tasks.finish_removals()).await;
    if let Some(exporter) = &api.exporter {
        exporter.stop().await;
    }
    tracing::info!("dstack-shim ends; tasks go on");
    served
}

/// Ends the machine when it is not needed, where that is wanted.
fn wait_for_end_of_use(settings: &Settings, tasks: &Tasks, needed: &Needed) -> Vec<JoinHandle<Option<()>>> {
    let Some(after) = settings.self_terminate_after else {
        return Vec::new();
    };
    let (needed, tasks) = (needed.clone(), tasks.clone());
    let ending = EndingCommand(settings.self_terminate_command.clone());
    let holding = needed.clone().hold_while_tasks_run(tasks);
    vec![
        task::spawn("tasks in use", holding),
        task::spawn("end of use", async move {
            end_when_not_needed(needed, after, &ending).await;
        }),
    ]
}

async fn serve(settings: &Settings, api: &Arc<Api>) -> Result<(), StartError> {
    let listeners = listen::open(settings).await?;
    task::spawn("signals", end_on_signal(api.shutdown.clone(), api.force.clone()));
    let servers = listeners.serve(router(api.clone()), &api.shutdown);
    let finish = async {
        servers.await;
        api.components.idle().await;
    };
    tokio::select! {
        () = finish => {}
        () = api.force.cancelled() => tracing::warn!("ends with open requests"),
    }
    Ok(())
}

/// SIGTERM or SIGINT: graceful, but not for long.
async fn end_on_signal(shutdown: CancellationToken, force: CancellationToken) {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("cannot listen to signals");
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    shutdown.cancel();
    tokio::time::sleep(GRACE).await;
    force.cancel();
}

fn prepare_home(home: &Path) -> Result<PathBuf, StartError> {
    fs_err::create_dir_all(home.join("runners")).map_err(StartError::State)?;
    // Mounts and restarts from another directory need the full path.
    fs_err::canonicalize(home).map_err(StartError::State)
}

/// Two agents on one directory would both start its tasks. The one before, which was told to end, may need a moment for it.
async fn lock_home(home: &Path) -> Result<fs_err::File, StartError> {
    use rustix::fs::{FlockOperation, flock};
    let path = home.join("shim.lock");
    let file = fs_err::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(StartError::State)?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= deadline {
            let problem = format!(
                "another dstack-shim uses {}: stop it, or use another directory",
                home.display()
            );
            let name = "--shim-home";
            return Err(StartError::Setting { name, problem });
        }
        tokio::time::sleep(LOCK_AGAIN).await;
    }
    Ok(file)
}

/// The storage directory, or the nearest one above that exists (a socket's path need not be on this machine).
fn existing(path: &Path) -> &Path {
    path.ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"))
}

/// The job agent: a file for containers, a command for processes.
struct Runner {
    path: PathBuf,
    command: Vec<String>,
}

async fn runner_binary(settings: &Settings) -> Result<Runner, StartError> {
    let given = settings.runner_binary.clone();
    if given
        .as_deref()
        .is_some_and(|given| same_file(given, &settings.shim_binary))
    {
        return Ok(own_binary(settings));
    }
    let path = given.clone().unwrap_or_else(|| RUNNER_PATH.into());
    if !path.exists() {
        if let Some(url) = &settings.runner_url {
            components::download_missing(url, &path)
                .await
                .map_err(StartError::RunnerDownload)?;
        } else if given.is_some() {
            return Err(StartError::RunnerMissing {
                path: path.display().to_string(),
            });
        } else {
            return Ok(own_binary(settings));
        }
    }
    Ok(Runner {
        command: vec![path.to_string_lossy().into_owned()],
        path,
    })
}

/// One binary is both agents: `runner` tells it which to be.
fn own_binary(settings: &Settings) -> Runner {
    let path = settings.shim_binary.clone();
    let command = vec![path.to_string_lossy().into_owned(), "runner".to_owned()];
    Runner { path, command }
}

fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs_err::canonicalize(path).ok();
    real(one).is_some_and(|one| real(other) == Some(one))
}

fn notices(runtime: &dyn Runtime, settings: &Settings) -> Vec<String> {
    let mut notices = runtime.notices();
    notices.extend(choice::notice(settings, runtime.name()));
    notices
}

async fn start_runtime(
    name: &str,
    settings: &Settings,
    runner: &Runner,
    gpus: &Gpus,
) -> Result<Arc<dyn Runtime>, StartError> {
    let runner_settings = RunnerSettings {
        binary: runner.path.clone(),
        http_port: settings.runner_http_port,
        ssh_port: settings.runner_ssh_port,
        log_level: settings.runner_log_level.clone(),
        ssh_log_level: settings.runner_ssh_log_level.clone(),
    };
    let root = settings.home.join("runners");
    if name == DOCKER {
        let docker = DockerSettings {
            runner: runner_settings,
            pass_env: settings.pass_env.clone(),
            privileged: settings.privileged,
            pjrt_device: settings.pjrt_device.clone(),
            vendor: gpus.vendor,
            root,
        };
        let runtime = DockerRuntime::new(settings.docker_host.as_deref(), docker);
        if settings.runtime == RuntimeChoice::Docker {
            runtime.connect().await.map_err(StartError::Docker)?;
        }
        return Ok(Arc::new(runtime));
    }
    let process = ProcessSettings {
        agent: "/proc/self/exe".into(),
        runner_command: runner.command.clone(),
        runner: runner_settings,
        pass_env: settings.pass_env.clone(),
        vendor: gpus.vendor,
    };
    Ok(Arc::new(ProcessRuntime::new(root, process)))
}
