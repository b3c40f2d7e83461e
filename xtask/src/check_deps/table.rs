//! Which crate may depend on which. Change a row only together with the reason for it.

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crate {
    /// Name of the package.
    pub(crate) name: &'static str,
    /// What keeps its dependencies few.
    pub(crate) rule: &'static str,
    /// Packages of this workspace that it may depend on.
    pub(crate) may_use: &'static [&'static str],
}

/// A crate of others that only some may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fenced {
    /// Name of the package.
    pub(crate) name: &'static str,
    /// Why not everybody may.
    pub(crate) rule: &'static str,
    /// Packages of this workspace that may, in their tests as well.
    pub(crate) only_in: &'static [&'static str],
}

/// What is used in few places only.
pub(crate) const FENCED: &[Fenced] = &[Fenced {
    name: "sqlx",
    rule: "statements in SQL stand in one crate, and tests have `dstack_store::raw`",
    only_in: &["dstack-store"],
}];

const fn row(name: &'static str, rule: &'static str, may_use: &'static [&'static str]) -> Crate {
    Crate { name, rule, may_use }
}

/// Crates of single clouds, in `backends/`.
pub(crate) const OF_CLOUDS: &[Crate] = &[
    row(
        "dstack-backend-*",
        "is one cloud; knows no other, neither engine nor store",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-http",
            "dstack-decode",
            "dstack-model",
            "dstack-catalog",
            "dstack-catalog-offers",
            "dstack-compute",
            "dstack-backend",
            "dstack-ssh",
            "dstack-credentials",
        ],
    ),
    row(
        "dstack-emulator-*",
        "plays a cloud by its vendor's description",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-backend-kit",
            "dstack-conformance",
        ],
    ),
];

/// The crates of the product, lowest first: a crate may depend only on crates above it in this table.
pub(crate) const PRODUCT: &[Crate] = &[
    row("dstack-units", "knows nothing of what is built from it", &[]),
    row(
        "dstack-system",
        "stands below everything that has effects",
        &["dstack-units"],
    ),
    row(
        "dstack-http",
        "is handed to everything that makes requests, and knows none of it",
        &["dstack-system", "dstack-units"],
    ),
    row(
        "dstack-telemetry",
        "serves any program",
        &["dstack-units", "dstack-system", "dstack-http"],
    ),
    row("dstack-decode-derive", "is a macro", &[]),
    row(
        "dstack-decode",
        "reads values of any type, and knows none of the product's but units",
        &["dstack-units", "dstack-decode-derive"],
    ),
    row(
        "dstack-model",
        "has types, and no effects",
        &["dstack-units", "dstack-decode"],
    ),
    row(
        "dstack-api",
        "is shared by server and command line",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-http",
            "dstack-decode",
            "dstack-model",
        ],
    ),
    row(
        "dstack-agent-api",
        "is shared by server and agents; agents know nothing of the model",
        &["dstack-units", "dstack-system"],
    ),
    row(
        "dstack-plan",
        "decides, and does nothing: no store, no cloud, no clock",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-decode",
            "dstack-model",
            "dstack-agent-api",
        ],
    ),
    row(
        "dstack-catalog",
        "has prices, also without a server",
        &["dstack-units", "dstack-system", "dstack-http"],
    ),
    row(
        "dstack-catalog-offers",
        "serves backends that have their prices from the catalog",
        &["dstack-units", "dstack-model", "dstack-catalog"],
    ),
    row(
        "dstack-compute",
        "is the contract with clouds; knows neither engine nor store",
        &["dstack-units", "dstack-system", "dstack-decode", "dstack-model"],
    ),
    row(
        "dstack-backend",
        "is what backends have in common; knows no cloud, neither engine nor store",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-http",
            "dstack-model",
            "dstack-catalog",
            "dstack-catalog-offers",
            "dstack-compute",
        ],
    ),
    row(
        "dstack-backends",
        "lists the backends of a build, and what collects their offers",
        &[
            "dstack-catalog",
            "dstack-compute",
            "dstack-backend",
            "dstack-backend-*",
        ],
    ),
    row(
        "dstack-images",
        "asks engines and registries only",
        &["dstack-units", "dstack-system", "dstack-http", "dstack-plan"],
    ),
    row(
        "dstack-ssh",
        "is shared by control plane, command line and agents",
        &["dstack-units", "dstack-system"],
    ),
    row(
        "dstack-sshd",
        "serves SSH to anybody; knows nothing of jobs",
        &["dstack-system", "dstack-ssh"],
    ),
    row(
        "dstack-hosts",
        "reaches machines and brings agents there; knows neither engine nor store",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-model",
            "dstack-agent-api",
            "dstack-ssh",
        ],
    ),
    row(
        "dstack-git",
        "clones repos for anybody; knows nothing of jobs",
        &["dstack-system", "dstack-ssh"],
    ),
    row(
        "dstack-credentials",
        "knows clouds' credentials, and no cloud",
        &["dstack-units", "dstack-system", "dstack-http"],
    ),
    row(
        "dstack-store",
        "keeps rows; does not know who decides or carries out",
        &["dstack-units", "dstack-system", "dstack-model", "dstack-plan"],
    ),
    row(
        "dstack-proxy",
        "passes requests on, for the server and for gateways; knows neither store nor engine",
        &["dstack-units", "dstack-system", "dstack-agent-api"],
    ),
    row(
        "dstack-logs",
        "keeps output; knows nothing of the database",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-http",
            "dstack-credentials",
        ],
    ),
    row(
        "dstack-engine",
        "sees traits, never a cloud, SQL or HTTP",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-decode",
            "dstack-model",
            "dstack-agent-api",
            "dstack-plan",
            "dstack-compute",
            "dstack-store",
        ],
    ),
    row(
        "dstack-control",
        "decides what is asked for; knows no HTTP, and the engine as a trait only",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-model",
            "dstack-agent-api",
            "dstack-plan",
            "dstack-compute",
            "dstack-ssh",
            "dstack-store",
        ],
    ),
    row("dstack-ui", "is the built files of the web page", &[]),
    row(
        "dstack-server",
        "is a role: roles never see one another",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-http",
            "dstack-telemetry",
            "dstack-decode",
            "dstack-model",
            "dstack-api",
            "dstack-agent-api",
            "dstack-plan",
            "dstack-compute",
            "dstack-images",
            "dstack-hosts",
            "dstack-ssh",
            "dstack-credentials",
            "dstack-store",
            "dstack-logs",
            "dstack-engine",
            "dstack-control",
            "dstack-proxy",
        ],
    ),
    row(
        "dstack-cli",
        "is a role: roles never see one another, and it knows the server by its API only",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-http",
            "dstack-model",
            "dstack-api",
            "dstack-catalog",
            "dstack-ssh",
        ],
    ),
    row(
        "dstack-shim",
        "is a role: roles never see one another, and it knows the server by the agents' API only",
        &["dstack-units", "dstack-system", "dstack-http", "dstack-agent-api"],
    ),
    row(
        "dstack-runner",
        "is a role: roles never see one another, and it knows the server by the agents' API only",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-agent-api",
            "dstack-ssh",
            "dstack-sshd",
            "dstack-git",
        ],
    ),
    row(
        "dstack-gateway",
        "is a role: roles never see one another, and it knows the server by the gateway's API only",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-agent-api",
            "dstack-ssh",
            "dstack-proxy",
        ],
    ),
    row(
        "dstack",
        "is a binary: it puts server and command line together, and has no agent",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-telemetry",
            "dstack-http",
            "dstack-model",
            "dstack-plan",
            "dstack-catalog",
            "dstack-compute",
            "dstack-backend",
            "dstack-backends",
            "dstack-images",
            "dstack-store",
            "dstack-engine",
            "dstack-hosts",
            "dstack-control",
            "dstack-proxy",
            "dstack-ui",
            "dstack-server",
            "dstack-cli",
        ],
    ),
    row(
        "dstack-agent",
        "is a binary: it puts shim, runner and gateway together, and has nothing of the server",
        &["dstack-system", "dstack-shim", "dstack-runner", "dstack-gateway"],
    ),
];

/// What stands beside the product. Crates of the product may use these in their tests only.
pub(crate) const BESIDE: &[Crate] = &[
    row(
        "dstack-backend-kit",
        "is what every backend has to do, whichever cloud it is of",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-http",
            "dstack-model",
            "dstack-catalog",
            "dstack-compute",
            "dstack-backend",
        ],
    ),
    row(
        "dstack-backend-conformance",
        "runs every backend through the kit",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-model",
            "dstack-catalog",
            "dstack-compute",
            "dstack-backend",
            "dstack-backend-kit",
            "dstack-backend-*",
            "dstack-emulator-*",
        ],
    ),
    row("dstack-conformance", "checks answers against documents", &[]),
    row(
        "dstack-login-doubles",
        "plays a service of others, by its documents",
        &["dstack-system"],
    ),
    row(
        "dstack-store-doubles",
        "plays services of others, by their documents",
        &["dstack-units", "dstack-system"],
    ),
    row(
        "dstack-telemetry-doubles",
        "plays services of others, by their documents",
        &["dstack-system"],
    ),
    row(
        "dstack-scale-doubles",
        "is the server with thousands of simulated hosts",
        &[
            "dstack",
            "dstack-units",
            "dstack-system",
            "dstack-agent-api",
            "dstack-compute",
            "dstack-plan",
            "dstack-store",
            "dstack-engine",
            "dstack-server",
            "dstack-cli",
        ],
    ),
    row(
        "dstack-golden-doubles",
        "is the server with doubles of the recorded clouds",
        &[
            "dstack",
            "dstack-units",
            "dstack-model",
            "dstack-plan",
            "dstack-catalog",
            "dstack-catalog-offers",
            "dstack-compute",
            "dstack-images",
            "dstack-server",
            "dstack-cli",
        ],
    ),
    row(
        "dstack-sim",
        "runs the engine without server and agents",
        &[
            "dstack-units",
            "dstack-system",
            "dstack-model",
            "dstack-agent-api",
            "dstack-plan",
            "dstack-compute",
            "dstack-store",
            "dstack-engine",
            "dstack-control",
        ],
    ),
    row(
        "dstack-tests",
        "runs the built programs, and sees them from outside only",
        &[
            // As a client of agents beside the server, and for doubles of agents.
            "dstack-agent-api",
            "dstack-system",
            "dstack-conformance",
            "dstack-login-doubles",
            "dstack-store-doubles",
            "dstack-telemetry-doubles",
            "dstack-backend-kit",
            "dstack-emulator-*",
        ],
    ),
    row("xtask", "is built before anything else can be", &[]),
];
