//! Everything before the first tick, and the end.

use std::{
    collections::BTreeMap,
    error::Error,
    fs, io,
    os::unix::{fs::DirBuilderExt, net::UnixDatagram},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use health_core::{
    engine::{Engine, Input},
    model::ServiceSpec,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use super::{Daemon, End, house::House, learn, memory, names::Names, publish, routes::Ways};
use crate::{
    act::ending::Ender,
    cli::RunOptions,
    config::{self, Config, ConfigErrors},
    control::{ControlError, EventLog, Handle, Listener, Published},
    datapath::{Applied, Change, Datapath, DatapathError, Neighbours, Routes},
    probe::{
        self, ProbeError, Report, Scheduler, Settings, Target,
        pkcs11::{Hub, Program},
    },
    telemetry::{self, Heartbeat, Metrics, Server, TelemetryError, logs::LogError},
};

/// Results of checks that may wait for the loop. Above what all checks of a large node end in one tick.
const RESULTS_MAX: usize = 16_384;

/// Commands that may wait.
const COMMANDS_MAX: usize = 64;

/// Why the daemon can't run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The kernel.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    /// A hook.
    #[error(transparent)]
    Hook(Arc<DatapathError>),
    /// The thread that ends connections.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The socket of the command line.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Metrics.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// Active checks.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// Logs.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The runtime.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    /// Signals.
    #[error("cannot take signals")]
    Signals(#[source] io::Error),
    /// Netlink.
    #[error("cannot ask for routes")]
    Routes(#[source] io::Error),
    /// The state directory.
    #[error("cannot make the state directory `{}`", path.display())]
    State {
        /// `node.state_dir`.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Runs the daemon until a signal or `sluice detach` ends it. The datapath goes on after a signal.
///
/// # Errors
///
/// Whatever keeps it from starting.
pub fn run(options: RunOptions) -> Result<(), StartError> {
    telemetry::logs::init(options.log_format)?;
    let loaded = config::load(&options.config)?;
    loaded.warnings.iter().for_each(|warning| warn!("{}", warning.message));
    raise_descriptors();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(StartError::Runtime)?;
    runtime.block_on(serve(options, loaded.config))
}

async fn serve(options: RunOptions, config: Config) -> Result<(), StartError> {
    state_dir(&config)?;
    let (names, config) = Names::resolve(config).await;
    let mut datapath = Datapath::open(&config)?;
    datapath.log();
    // The pins' lock has been taken: from here on no other daemon is in the way.
    let listener = Listener::bind(&config.control.socket)?;
    let routes = Routes::open().map_err(StartError::Routes)?;
    let ways = Ways::find(&routes, &config).await;
    super::routes::check(&config, &ways)?;
    let specs = datapath.configure(&config, &ways.interfaces())?;
    let ring = datapath.events()?;
    let (hub, alarms) = Hub::new(config.node.state_dir.clone(), Program::default());
    let (mut checks, results) = scheduler(&config, &hub)?;
    checks.apply(&Target::all(&config, datapath.registry()))?;
    let (status, status_seen) = watch::channel(None::<Arc<Published>>);
    let (commands_in, commands) = mpsc::channel(COMMANDS_MAX);
    let (log, metrics, heartbeat) = (EventLog::default(), Metrics::default(), Heartbeat::default());
    let server = Server::bind(config.control.listen, metrics.clone(), heartbeat.clone()).await?;
    tokio::spawn(server.serve());
    let handle = Handle { status: status_seen, events: log.clone(), commands: commands_in };
    say_loaded(&datapath)?;
    let (ender, over) = Ender::start(config.node.pin_dir.clone()).map_err(StartError::Thread)?;
    let mut daemon = Daemon {
        engine: engine(&specs, &config),
        options,
        names,
        specs,
        sweeper: datapath.sweeper()?,
        datapath,
        house: House::new(Neighbours::open().map_err(StartError::Routes)?, ways),
        routes,
        checks,
        results,
        hub: Arc::clone(&hub),
        alarms,
        commands,
        log,
        status,
        metrics,
        heartbeat,
        input: Input::default(),
        readings: BTreeMap::new(),
        next_read: 0,
        learned: BTreeMap::<u16, learn::Learner>::new(),
        last: None,
        applied: Applied::default(),
        tallies: publish::Tallies::started(),
        troubles: super::trouble::Troubles::default(),
        draining: None,
        attacks: super::attack::Files::default(),
        keeper: memory::Keeper::new(&config.node.state_dir),
        ender,
        ended: over,
        ticks: 0,
        lag: Duration::ZERO,
        config,
    };
    daemon.begin()?;
    // Who is answered may rely on the programs: until now, clients wait in the socket's queue.
    let control = tokio::spawn(listener.serve(handle));
    notify("READY=1");
    let end = daemon.run(ring).await;
    notify("STOPPING=1");
    // Sessions on HSMs outlive the process that opened them, so they are closed whatever ended the loop.
    hub.shutdown().await;
    let end = end?;
    finish(control, &end).await;
    Ok(())
}

/// The listener takes its socket away when its task has ended.
async fn finish<T>(control: tokio::task::JoinHandle<T>, end: &End) {
    control.abort();
    drop(control.await);
    say_end(end);
}

impl Daemon {
    /// Goes on where the former daemon was. The first plan is written before the first program is attached, so that none
    /// steers by an empty table.
    fn begin(&mut self) -> Result<(), StartError> {
        self.recall();
        self.tell_sites();
        self.tick();
        self.attach_first()?;
        // What is shown from now on has the hooks.
        self.publish(probe::now(), true);
        Ok(())
    }
}

fn engine(specs: &[ServiceSpec], config: &Config) -> Engine {
    let mut engine = Engine::new(specs.to_vec(), probe::now());
    engine.set_governor(config.node.governor);
    engine
}

fn say_loaded(datapath: &Datapath) -> Result<(), StartError> {
    let memory = datapath.memory_bytes()?;
    info!(
        pins = %datapath.pin_dir().display(),
        adopted = datapath.adopted(),
        memory_mib = memory >> 20,
        "the kernel half is loaded"
    );
    Ok(())
}

fn say_end(end: &End) {
    match end {
        End::Stopped => info!("stopped; the kernel goes on steering by its last plan"),
        End::Detached => info!("stopped; programs and pins are removed"),
    }
}

/// The checks' scheduler and where its results arrive.
pub(super) fn scheduler(config: &Config, hub: &Arc<Hub>) -> Result<(Scheduler, mpsc::Receiver<Report>), ProbeError> {
    let (results_in, results) = mpsc::channel(RESULTS_MAX);
    let settings = Settings { mark: config.node.bypass.mark, checks_per_s: config.node.limits.checks_per_s };
    Ok((Scheduler::new(settings, results_in)?.with_hub(Arc::clone(hub)), results))
}

fn state_dir(config: &Config) -> Result<(), StartError> {
    let path = &config.node.state_dir;
    if path.is_dir() {
        return Ok(());
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| StartError::State { path: path.clone(), source })
}

/// Says what changed about hooks. A missing interface is said once.
pub(super) fn say(change: &Change) {
    match change {
        Change::Attached(name) => info!(interface = name, "attached"),
        Change::Adopted(name) => info!(interface = name, "took over the programs of a former daemon"),
        Change::Gone(name) => warn!(interface = name, "went away; attached again when it comes back"),
        Change::Failed(name, error) => error!(interface = name, error = %chain(error.as_ref()), "cannot attach"),
        Change::Waiting(name) => warn!(interface = name, "is not there yet; attached when it appears"),
    }
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Checks need a descriptor each while they run: the soft limit becomes the hard one.
fn raise_descriptors() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        warn!(%error, soft, hard, "cannot raise the limit of descriptors");
    }
}

/// Tells the service manager, if there is one. `sd_notify(3)`.
fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to(state.as_bytes(), &path));
    if let Err(error) = sent {
        warn!(%error, "cannot notify the service manager");
    }
}
