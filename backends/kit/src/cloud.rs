use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use dstack_backend::Env;
use dstack_catalog::{Catalog, Filter, Settings, builtin};
use dstack_compute::config::BackendConfig;
use dstack_compute::{Backend, BackendKind, ConfigureError};
use dstack_http::{ClientOptions, LazyClient, Transport};
use dstack_model::backends::BackendType;
use dstack_model::decode::decode_strict;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::Requirements;
use dstack_system::clock::VirtualClock;
use dstack_system::{Random, SystemClock};
use dstack_units::{InstallationId, Time};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{EmulatedTransport, Emulator, Faults};

/// A credential that must never be shown: configurations of tests use it wherever there is a secret.
pub const CANARY: &str = "canary-0f1e2d3c";

/// An emulated cloud with an account, and the backend for it.
#[derive(Debug)]
pub struct Cloud {
    /// What plays the vendor, with its own books.
    pub emulator: Arc<dyn Emulator>,
    /// What carries requests there.
    pub transport: EmulatedTransport,
    /// What backends are handed.
    pub env: Env,
    /// The kind of backends under test.
    pub kind: Arc<dyn BackendKind>,
    /// A configuration that works.
    pub config: Value,
    /// Configurations with credentials that the cloud refuses, and the paths of the fields at fault, such as `creds.api_key`.
    pub refused: Vec<(Value, &'static [&'static str])>,
    /// The region of what is asked for; any when unset.
    pub region: Option<&'static str>,
}

impl Cloud {
    /// The cloud of an emulator.
    pub fn new(
        emulator: Arc<dyn Emulator>,
        kind: fn(Env) -> Arc<dyn BackendKind>,
        config: Value,
        refused: Vec<(Value, &'static [&'static str])>,
    ) -> Self {
        let transport = EmulatedTransport::new(emulator.router());
        let env = env(Arc::new(transport.clone()));
        Self {
            emulator,
            kind: kind(env.clone()),
            transport,
            env,
            config,
            refused,
            region: None,
        }
    }

    /// What happens to requests.
    pub fn faults(&self) -> &Faults {
        self.transport.faults()
    }

    /// The backend of the configuration that works, as a server opens it.
    pub fn open(&self) -> Arc<dyn Backend> {
        let config = BackendConfig::read(&self.config).unwrap();
        self.kind.open(&config.split()).unwrap()
    }

    /// Checks a configuration as a server does before it stores it, and opens what is to be stored: its fields, without credentials.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub async fn configure(&self, config: &Value) -> Result<Value, ConfigureError> {
        let config = BackendConfig::read(config).unwrap();
        let stored = self.kind.configure("main", &config).await?;
        self.kind.open(&stored).unwrap();
        Ok(serde_json::from_str(&stored.config).unwrap())
    }

    /// What a server that has just started is offered.
    pub async fn offers(&self, requirements: &Requirements) -> Vec<InstanceOfferWithAvailability> {
        self.open().offers(requirements).await.unwrap()
    }

    /// What jobs mostly ask for.
    pub fn requirements() -> Requirements {
        requirements(&json!({"resources": {"cpu": "1..", "memory": "1GB..", "disk": "1GB.."}}))
    }
}

/// Requirements as they are stored of a run: `{"resources": {"cpu": "2.."}, "spot": true}`.
pub fn requirements(asked: &Value) -> Requirements {
    decode_strict(asked).unwrap()
}

/// An object with these fields instead of its own, or besides them.
pub fn extended(mut object: Value, fields: &Value) -> Value {
    let all = object.as_object_mut().unwrap();
    all.extend(fields.as_object().unwrap().clone());
    object
}

/// Rows of the compiled-in catalogue, as an emulator has them: those of a provider that have no other flags than these, or whatever
/// flags they have when none are named.
pub fn sizes_of_catalog<T>(
    provider: &str,
    flags: &[&str],
    size: impl Fn(dstack_catalog::Offer<'_>) -> T,
) -> Vec<T> {
    let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
    let filter = Filter {
        provider: Some(vec![provider.to_owned()]),
        allowed_flags: (!flags.is_empty()).then_some(flags),
        ..Filter::default()
    };
    builtin().query(&filter).unwrap().map(size).collect()
}

/// As [`env`], in real time and over the network, for an emulator of others that is at this URL.
pub fn network_env(backend: BackendType, url: &str) -> Env {
    let transport = LazyClient::new(ClientOptions::default());
    Env {
        clock: Arc::new(SystemClock),
        endpoints: HashMap::from([(backend, url.parse().unwrap())]),
        ..env(Arc::new(transport))
    }
}

/// The installation by which tests make things in clouds.
pub fn installation() -> InstallationId {
    Uuid::from_u128(0x1234_5678_9abc_4def_8012_3456_789a_bcde).into()
}

/// What backends are handed, in virtual time and with the compiled-in catalogue.
pub fn env(transport: Arc<dyn Transport>) -> Env {
    let settings = Settings {
        url: "http://catalog.invalid".to_owned(),
        dir: None,
        cache: None,
    };
    Env {
        clock: Arc::new(VirtualClock::starting_at(Time::from_millis(1_700_000_000_000))),
        random: Random::seeded(1),
        transport,
        catalog: Arc::new(Catalog::new(settings)),
        endpoints: HashMap::new(),
        own_url: None,
        installation: Arc::new(OnceLock::from(installation())),
    }
}
