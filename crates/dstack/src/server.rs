//! `dstack server`: the API, the engine, and this machine as an instance.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use dstack_cli::{ErrorKind, ServerAction, ServerArgs, ServerImportArgs};
use dstack_control::own_machine::{self, Registered, ThisMachine, Withdrawn};
use dstack_engine::failpoint::{AbortAt, NoFailpoints};
use dstack_engine::{Engine, EngineDeps, Failpoints, Settings as EngineSettings};
use dstack_hosts::deploy::Deployer;
use dstack_hosts::pool::Pool;
use dstack_hosts::this_machine::binary::Embedded;
use dstack_hosts::this_machine::{LocalShim, LocalShimOptions, binary};
use dstack_server::config::{self, ServerConfig};
use dstack_server::import::{ImportError, ImportOptions};
use dstack_server::settings::report_unused;
use dstack_server::site::{File, Site};
use dstack_server::wiring::{
    Connected, ConnectedAgents, DatabaseKeyring, GatewayHosts, LogOutput, Machine as ReachedMachine,
    SqlInputs, SshHosts,
};
use dstack_server::{
    BoxFuture, EngineContext, EngineParts, ServerError, ServerOptions, Settings, StartedEngine, serve,
};
use dstack_store::rows::HostRules;
use dstack_store::{EngineStore, EntityRef, StoreError};
use dstack_system::{Random, chain, env, task};
use dstack_telemetry::{Telemetry, TelemetryError};
use dstack_units::InstanceId;
use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::{Handle, Runtime};

use crate::backends;
use crate::local_machine::Offer;
use crate::logging;
use crate::prompts;
use crate::protected_paths::{Places, protected_paths};

type StartError = Box<dyn std::error::Error + Send + Sync>;

/// The agents that are carried inside.
static EMBEDDED_AGENTS: &[Embedded<'_>] = include!(concat!(env!("OUT_DIR"), "/agents.rs"));

/// Runs the server until it is told to stop; `customize` has the last word on its options.
pub fn server(arguments: ServerArgs, customize: impl FnOnce(&mut ServerOptions)) -> ExitCode {
    let level = if arguments.debug {
        Some("DEBUG".to_owned())
    } else {
        arguments.log_level.clone()
    };
    if let Some(ServerAction::Import(arguments)) = arguments.action {
        logging::start(level.as_deref(), &Settings::from_env(), &Telemetry::default());
        report_unused();
        return match threads("dstack", 0) {
            Ok(runtime) => runtime.block_on(import(arguments)),
            Err(error) => fail(&error),
        };
    }
    let settings = Settings::from_env();
    let telemetry = match start_telemetry(&settings) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(&error),
    };
    logging::start(level.as_deref(), &settings, &telemetry);
    report_unused();
    let result = run(arguments, telemetry.clone(), customize);
    telemetry.stop(LAST_TELEMETRY);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error.as_ref()),
    }
}

/// How long the end of the server waits for whoever receives its telemetry.
const LAST_TELEMETRY: Duration = Duration::from_secs(3);

/// What is to be sent of this process; nothing of it is started unless it is wanted.
fn start_telemetry(settings: &Settings) -> Result<Telemetry, TelemetryError> {
    let options = settings.telemetry(Random::system().uuid().to_string())?;
    Telemetry::start(&options)
}

/// What is decided of this machine before the server starts.
struct MachineOptions {
    offer: Offer,
    /// Files with credentials that `config.yml` names.
    credential_files: Vec<PathBuf>,
}

/// `config.yml`, if it can be read: what is wrong with it is said when the server reads it.
fn server_config(settings: &Settings) -> Option<ServerConfig> {
    match settings.config_disabled {
        true => None,
        false => config::load(&settings.dir).ok().flatten(),
    }
}

/// Serves until the end.
fn run(
    arguments: ServerArgs,
    telemetry: Telemetry,
    customize: impl FnOnce(&mut ServerOptions),
) -> Result<(), StartError> {
    let (runtime, workers) = (threads("dstack", 0)?, threads("dstack-work", WORKER_NICE)?);
    let mut options = ServerOptions::from_env();
    apply(&mut options.settings, arguments);
    let config = server_config(&options.settings);
    let offer = Offer::of_server(&options.settings, config.as_ref());
    let machine = MachineOptions {
        offer,
        credential_files: config.map(|config| config.credential_files()).unwrap_or_default(),
    };
    options.telemetry = telemetry;
    options.prompts = prompts::renderer();
    options.site = site();
    let policy = options.settings.outbound_policy();
    options.images = dstack_images::of_server((machine.offer == Offer::Offered).then(local_engine), policy);
    options.workers = Some(workers.handle().clone());
    let catalog = backends::install(&mut options)?;
    let prices = (!options.settings.catalog_refresh_disabled).then_some(catalog);
    let (handle, main) = (workers.handle().clone(), runtime.handle().clone());
    options.start_engine = Some(Box::new(move |context| {
        let started = task::spawn_on(&handle, "start the engine", async move {
            if let Some(catalog) = prices {
                backends::keep_prices_fresh(catalog, context.data.database.clone());
            }
            start_engine(context, machine, main).await
        });
        Box::pin(async move { started.await?.unwrap_or_else(|| Err(task::Panicked.into())) })
    }));
    customize(&mut options);
    let result = runtime.block_on(serve(options));
    for threads in [workers, runtime] {
        threads.shutdown_timeout(Duration::from_secs(2));
    }
    Ok(result?)
}

/// The web page that this build carries.
fn site() -> Site {
    Site::of(dstack_ui::FILES.iter().map(|file| File {
        path: file.path,
        plain: file.plain,
        brotli: file.brotli,
        gzip: file.gzip,
    }))
}

/// How much lower the priority of the second set of threads is (`nice`): a third of the time of others where all
/// processors are taken, and all they want where they are not.
const WORKER_NICE: i32 = 5;

/// A set of as many threads as there are processors. The server has two: the second works on what changes things, the
/// engine and calls that write, so that calls that read find the first free (`docs/adr/013-two-sets-of-threads.md`).
fn threads(name: &str, steps_back: i32) -> std::io::Result<Runtime> {
    let priority = getpriority_process(None)? + steps_back;
    tokio::runtime::Builder::new_multi_thread()
        .thread_name(name)
        .on_thread_start(move || {
            // Of this thread only, on Linux. One that may not is as important as others.
            setpriority_process(None, priority).ok();
        })
        .enable_all()
        .build()
}

/// Takes over an installation of dstack 0.22.5, and says what it did.
async fn import(arguments: ServerImportArgs) -> ExitCode {
    use std::io::Write;
    let options = ImportOptions {
        from: arguments.from,
        config: arguments.config,
        dry_run: arguments.dry_run,
    };
    match dstack_server::import::import(&Settings::from_env(), &Random::system(), &options).await {
        Ok(report) => {
            let text = report.text(options.dry_run);
            // Whoever does not listen does not want to know.
            std::io::stdout().lock().write_all(text.as_bytes()).ok();
            ExitCode::SUCCESS
        }
        Err(error) => fail(&error),
    }
}

/// Flags win over the environment.
fn apply(settings: &mut Settings, arguments: ServerArgs) {
    settings.host = arguments.host.unwrap_or_else(|| settings.host.clone());
    settings.port = arguments.port.unwrap_or(settings.port);
    settings.local = match (arguments.local, arguments.no_local) {
        (_, true) => Some(false),
        (true, _) => Some(true),
        _ => settings.local,
    };
    settings.admin_token = arguments.token.or_else(|| settings.admin_token.take());
    settings.update_default_project |= arguments.yes;
    settings.do_not_update_default_project |= arguments.no;
}

/// The cause, and the causes of the cause, each on a line of its own.
fn fail(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    use std::io::Write;
    let mut err = std::io::stderr().lock();
    let code = kind(error).code().unwrap_or_default();
    let mut text = format!("error: {error} [{code}]\n");
    for cause in dstack_system::causes(error).skip(1) {
        text.push_str(&format!("  caused by: {cause}\n"));
    }
    if let Some(hint) = disk_full_hint(error, || Settings::from_env().sqlite_path().is_some()) {
        text.push_str(&format!(
            "hint: the disk is full. {hint}; then start the server again\n"
        ));
    }
    // Nothing is left to be done when even that cannot be said.
    let _ = err.write_all(text.as_bytes());
    ExitCode::FAILURE
}

/// Where to free space, if that is what is missing. A PostgreSQL has a disk of its own.
fn disk_full_hint(
    error: &(dyn std::error::Error + 'static),
    is_sqlite: impl Fn() -> bool,
) -> Option<&'static str> {
    let cause = dstack_system::causes(error).find(|cause| is_disk_full(*cause))?;
    Some(match cause.is::<StoreError>() && !is_sqlite() {
        true => "Free space on the disk of the PostgreSQL server that DSTACK_DATABASE_URL names",
        false => {
            "Free space on the disk of the server's directory (~/.dstack/server), or set DSTACK_SERVER_DIR to one with more space"
        }
    })
}

/// Returns what happened, for the code that is printed with it.
fn kind(error: &(dyn std::error::Error + 'static)) -> ErrorKind {
    if dstack_system::causes(error).any(is_disk_full) {
        return ErrorKind::DiskFull;
    }
    if error.is::<ImportError>() {
        return ErrorKind::Import;
    }
    if error.is::<TelemetryError>() {
        return ErrorKind::Telemetry;
    }
    match error.downcast_ref::<ServerError>() {
        Some(ServerError::Dir { .. }) => ErrorKind::ServerDirectory,
        Some(ServerError::InUse { .. }) => ErrorKind::ServerInUse,
        Some(ServerError::Config(_) | ServerError::ProjectName(_)) => ErrorKind::ServerConfig,
        Some(ServerError::Store(_)) => ErrorKind::Database,
        Some(ServerError::AdminToken | ServerError::KeysMissing(_)) => ErrorKind::EncryptionKey,
        Some(ServerError::Listen { .. }) => ErrorKind::Listen,
        Some(ServerError::Bucket(_)) => ErrorKind::Bucket,
        // A part may have failed because the database did.
        Some(ServerError::Bootstrap(_) | ServerError::Engine(_)) | None => match is_database_away(error) {
            true => ErrorKind::Database,
            false => ErrorKind::ServerStart,
        },
    }
}

fn is_database_away(error: &(dyn std::error::Error + 'static)) -> bool {
    let store: Option<&StoreError> = dstack_system::find_cause(error);
    store.is_some_and(|store| store.unavailable().is_some())
}

fn is_disk_full(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(store) = error.downcast_ref::<StoreError>() {
        return store.unavailable() == Some(dstack_store::Unavailable::DiskFull);
    }
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::StorageFull)
}

async fn start_engine(
    context: EngineContext,
    options: MachineOptions,
    main: Handle,
) -> Result<StartedEngine, StartError> {
    if let Some(notice) = options.offer.notice() {
        tracing::warn!("{notice}");
    }
    let offered = options.offer == Offer::Offered;
    let machine = match &context.identity {
        Some(identity) if offered => {
            let files = &options.credential_files;
            Some(start_machine(&context, &identity.name, files, &main).await?)
        }
        Some(identity) => finish_machine(&context, &identity.name, &main).await?,
        None if !offered => None,
        None => {
            tracing::warn!(
                "another server of this machine uses the same directory: the machine is an instance of that one. \
                 Set another DSTACK_SERVER_DIR for one of them"
            );
            None
        }
    };
    let here = machine.as_ref().map(|machine| ReachedMachine {
        host: machine.host.clone(),
        socket: machine.shim.socket().to_owned(),
    });
    let processes = machine
        .as_ref()
        .is_some_and(|machine| machine.runtime == "process");
    let jobs = context.jobs.clone().with_processes_here(offered && processes);
    let keys = Arc::clone(&jobs.keys);
    let database = context.data.database.clone();
    let keyring = DatabaseKeyring::new(database.clone(), jobs.encryption.clone(), Arc::clone(&keys));
    let keyring = Arc::new(keyring);
    let pool = Pool::new(Arc::clone(&keyring) as _);
    let agents = binary::for_hosts(&agent_dir(&context), EMBEDDED_AGENTS);
    let deployer = Deployer::new(pool.clone(), agents);
    context.services.publish_through(Arc::new(GatewayHosts::new(
        deployer.clone(),
        pool.clone(),
        Arc::clone(&keyring),
        database.clone(),
        Arc::clone(&keys),
    )));
    let agents = ConnectedAgents::new(here, pool, Pool::new(keyring));
    context.services.reach_through(Arc::new(agents.clone()));
    let engine = Engine::start(EngineDeps {
        store: Arc::new(context.data.store()) as Arc<dyn EngineStore>,
        agents: Arc::new(agents),
        hosts: Arc::new(SshHosts::new(deployer, database, keys)),
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
        failpoints: failpoints(),
        settings: EngineSettings {
            installation: context.installation,
            identity: context.identity.clone(),
            home: machine.as_ref().map(|machine| machine.instance),
            host_network: context.settings.host_network(),
            offers_tried: context.settings.offers_tried(),
            health_every: context.settings.health_every(),
            orphans: context.settings.orphan_policy(),
            keep_tasks: context.settings.keep_shim_tasks,
            ..EngineSettings::default()
        },
    })
    .await?;
    if let Some(machine) = &machine {
        engine.wake(EntityRef::Instance(machine.instance));
    }
    let handle = Arc::new(Connected(engine.clone()));
    let stop = Box::new(move || -> BoxFuture<()> {
        Box::pin(async move {
            engine.stop();
            if let Some(machine) = machine {
                machine.shim.stop_if_idle().await;
            }
        })
    });
    let parts = EngineParts { handle, jobs };
    Ok(StartedEngine { parts, stop })
}

/// The container engine whose images jobs on this machine use.
fn local_engine() -> dstack_images::LocalEngine {
    dstack_images::LocalEngine::new(env::var("DOCKER_HOST").as_deref())
}

/// Where a kill test wants this process to die.
fn failpoints() -> Arc<dyn Failpoints> {
    match env::var("DSTACK_FAILPOINT") {
        Some(point) => Arc::new(AbortAt::parse(&point)),
        None => Arc::new(NoFailpoints),
    }
}

struct Machine {
    host: String,
    shim: LocalShim,
    runtime: String,
    instance: InstanceId,
}

/// State of the agent of this machine.
fn agent_dir(context: &EngineContext) -> PathBuf {
    context.settings.dir.join("local")
}

/// The agent of this machine.
async fn start_shim(context: &EngineContext, main: &Handle) -> Result<LocalShim, StartError> {
    let dir = agent_dir(context);
    let binary = binary::find(&dir, EMBEDDED_AGENTS)?;
    let runtime = context.settings.local_runtime.clone();
    let options = LocalShimOptions {
        dir: dir.clone(),
        binary,
        runtime,
    };
    // Jobs are not to have the priority of our second set of threads.
    let started = task::spawn_on(main, "start the local agent", LocalShim::start(options)).await;
    let shim = started?.ok_or(task::Panicked)??;
    binary::remove_others(&dir, shim.binary());
    Ok(shim)
}

/// What is allowed on this machine, whose agent is `shim`.
async fn rules(
    context: &EngineContext,
    shim: &LocalShim,
    runtime: &str,
    credentials: &[PathBuf],
) -> HostRules {
    if runtime == "process" {
        // A process may read what the server may: nothing can be kept from it.
        return HostRules {
            containers: false,
            ..HostRules::default()
        };
    }
    let mut programs = vec![shim.binary().to_owned()];
    programs.extend(std::env::current_exe());
    let (database, home) = (context.settings.sqlite_file(), env::home());
    let engine_data = local_engine().data_root().await;
    let protected_paths = protected_paths(&Places {
        server_dir: &context.settings.dir,
        database: database.as_deref(),
        configured: credentials,
        programs: &programs,
        sockets: shim.socket().parent(),
        engine_data: engine_data.as_deref(),
        home: home.as_deref(),
        user: rustix::process::getuid().as_raw(),
        variable: &env::var,
    });
    HostRules {
        protected_paths,
        ..HostRules::default()
    }
}

/// Takes the machine out of what is offered, if an earlier start offered it. While jobs run there, its agent does as well,
/// and they are followed to their end.
async fn finish_machine(
    context: &EngineContext,
    host: &str,
    main: &Handle,
) -> Result<Option<Machine>, StartError> {
    let (project, now) = (context.project.id, context.data.clock.now());
    let withdrawn =
        own_machine::withdraw(&context.data.store(), project, host, &context.data.random, now).await?;
    let Some(Withdrawn {
        instance,
        is_busy: true,
    }) = withdrawn
    else {
        LocalShim::end_left_behind(&agent_dir(context)).await;
        return Ok(None);
    };
    match follow_machine(context, host, instance, main).await {
        Ok(machine) => {
            tracing::info!(
                "jobs run on this machine still: they go on to their end, and it gets no new ones"
            );
            Ok(Some(machine))
        }
        // Nothing else depends on it: the server starts, as it does when it cannot reach another host.
        Err(error) => {
            tracing::error!(
                error = %chain(error.as_ref()),
                "jobs run on this machine still, but its agent cannot be started: they are lost unless the server starts again \
                 with its agent in the next minutes"
            );
            Ok(None)
        }
    }
}

async fn follow_machine(
    context: &EngineContext,
    host: &str,
    instance: InstanceId,
    main: &Handle,
) -> Result<Machine, StartError> {
    let shim = start_shim(context, main).await?;
    let runtime = shim.report().await?.runtime;
    Ok(Machine {
        host: host.to_owned(),
        shim,
        runtime,
        instance,
    })
}

async fn start_machine(
    context: &EngineContext,
    host: &str,
    credentials: &[PathBuf],
    main: &Handle,
) -> Result<Machine, StartError> {
    let shim = start_shim(context, main).await?;
    let report = shim.report().await?;
    let this = ThisMachine {
        host,
        report: &report,
        rules: &rules(context, &shim, &report.runtime, credentials).await,
    };
    let now = context.data.clock.now();
    let Registered { instance, fleet } = own_machine::register(
        &context.data.store(),
        context.project.id,
        this,
        &context.data.random,
        now,
    )
    .await?;
    for notice in &report.notices {
        tracing::warn!("{notice}");
    }
    tracing::info!(runtime = %report.runtime, cpus = report.host_info.cpus, gpus = report.host_info.gpu_count, "this machine is an instance of the fleet `{fleet}`");
    Ok(Machine {
        host: host.to_owned(),
        shim,
        runtime: report.runtime,
        instance,
    })
}

#[cfg(test)]
mod tests {
    use dstack_hosts::this_machine::LocalError;

    use super::*;

    #[test]
    fn a_part_that_fails_because_the_database_does_is_an_error_of_the_database() {
        let engine = |cause: StoreError| ServerError::Engine(Box::new(cause));
        assert_eq!(
            kind(&engine(StoreError::Slow(Duration::from_secs(1)))),
            ErrorKind::Database
        );
        assert_eq!(kind(&engine(StoreError::TooMany)), ErrorKind::ServerStart);
        let no_agent = ServerError::Engine(Box::new(LocalError::NoBinary));
        assert_eq!(kind(&no_agent), ErrorKind::ServerStart);
    }

    #[test]
    fn a_full_disk_is_that_of_whoever_says_so() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert_eq!(kind(&full), ErrorKind::DiskFull);
        for is_sqlite in [true, false] {
            let hint = disk_full_hint(&full, || is_sqlite).unwrap();
            assert!(hint.contains("DSTACK_SERVER_DIR"), "{hint}");
        }
        assert_eq!(disk_full_hint(&StoreError::Closed, || false), None);
    }
}
