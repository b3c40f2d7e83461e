//! What each provider's catalogue must hold besides the common rules.

use std::collections::{BTreeMap, BTreeSet};

use super::Checks;
use super::places::{AWS_M5_LARGE, AZURE_D2S_V3, GCP_E2_HIGHCPU_2, LAMBDALABS, RUNPOD};
use crate::{Offer, Provider, Vendor};

type Names<'a> = BTreeSet<&'a str>;

pub(super) fn check(checks: &mut Checks, offers: &[Offer<'_>]) {
    match checks.provider {
        Provider::Aws => aws(checks, offers),
        Provider::Azure => azure(checks, offers),
        Provider::Gcp => gcp(checks, offers),
        Provider::Lambdalabs => lambdalabs(checks, offers),
        Provider::Nebius => nebius(checks, offers),
        Provider::Oci => oci(checks, offers),
        Provider::Runpod => runpod(checks, offers),
        Provider::Verda => verda(checks, offers),
        Provider::Cloudrift => cloudrift(checks, offers),
        Provider::Crusoe => {
            has_gpus(checks, offers);
            no_spot(checks, offers);
        }
        Provider::Digitalocean => {
            let droplet = offers.iter().any(|offer| offer.instance_name().starts_with("s-"));
            checks.whole(droplet, || "there is no `s-*` droplet".into());
            has_cpus(checks, offers);
            no_spot(checks, offers);
        }
        Provider::Jarvislabs => jarvislabs(checks, offers),
        Provider::Seeweb => seeweb(checks, offers),
        Provider::Vultr => {
            has_gpus(checks, offers);
            has_cpus(checks, offers);
            no_spot(checks, offers);
        }
        Provider::Hotaisle | Provider::Vastai | Provider::Daytona | Provider::Lium | Provider::Private => {}
    }
}

fn gpus<'a>(offers: &[Offer<'a>], wanted: impl Fn(&Offer<'a>) -> bool) -> Names<'a> {
    offers
        .iter()
        .filter(|offer| wanted(offer))
        .filter_map(Offer::gpu_name)
        .collect()
}

fn all_gpus<'a>(offers: &[Offer<'a>]) -> Names<'a> {
    gpus(offers, |_| true)
}

fn contains_all(checks: &mut Checks, found: &Names<'_>, expected: &[&'static str], of: &str) {
    for missing in expected.iter().filter(|name| !found.contains(*name)) {
        checks.whole(false, || format!("{of} `{missing}` is missing"));
    }
}

fn exactly(checks: &mut Checks, offers: &[Offer<'_>], expected: &[&'static str]) {
    let found = all_gpus(offers);
    contains_all(checks, &found, expected, "GPU");
    for offer in offers {
        let known = offer.gpu_name().is_none_or(|name| expected.contains(&name));
        checks.row(known, offer, || {
            format!("GPU `{}` is not expected", offer.gpu_name().unwrap_or_default())
        });
    }
}

fn in_places(
    checks: &mut Checks,
    offers: &[Offer<'_>],
    instance: &str,
    places: impl Iterator<Item = String>,
) {
    let found: Names<'_> = offers
        .iter()
        .filter(|offer| offer.instance_name() == instance)
        .map(Offer::location)
        .collect();
    for missing in places.filter(|place| !found.contains(place.as_str())) {
        checks.whole(false, || format!("`{instance}` is missing in `{missing}`"));
    }
}

fn words(list: &'static str) -> impl Iterator<Item = String> {
    list.split_whitespace().map(str::to_owned)
}

fn has_spot(checks: &mut Checks, offers: &[Offer<'_>]) {
    checks.whole(offers.iter().any(Offer::spot), || "there is no spot offer".into());
}

fn has_on_demand(checks: &mut Checks, offers: &[Offer<'_>]) {
    checks.whole(offers.iter().any(|offer| !offer.spot()), || {
        "there is no on-demand offer".into()
    });
}

fn no_spot(checks: &mut Checks, offers: &[Offer<'_>]) {
    for offer in offers {
        checks.row(!offer.spot(), offer, || "a spot offer is not expected".into());
    }
}

fn has_gpus(checks: &mut Checks, offers: &[Offer<'_>]) {
    checks.whole(offers.iter().any(|offer| offer.gpu_count() > 0), || {
        "there is no GPU offer".into()
    });
}

fn has_cpus(checks: &mut Checks, offers: &[Offer<'_>]) {
    checks.whole(offers.iter().any(|offer| offer.gpu_count() == 0), || {
        "there is no CPU offer".into()
    });
}

fn a100_memories(checks: &mut Checks, offers: &[Offer<'_>]) {
    let a100 = || offers.iter().filter(|offer| offer.gpu_name() == Some("A100"));
    for gib in [40.0, 80.0] {
        checks.whole(a100().any(|offer| offer.gpu_memory() == Some(gib)), || {
            format!("there is no A100 with {gib} GiB")
        });
    }
    for offer in a100() {
        let known = offer.gpu_memory().is_some_and(|gib| gib == 40.0 || gib == 80.0);
        checks.row(known, offer, || "an A100 has neither 40 nor 80 GiB".into());
    }
}

fn aws(checks: &mut Checks, offers: &[Offer<'_>]) {
    in_places(checks, offers, "m5.large", words(AWS_M5_LARGE));
    has_spot(checks, offers);
    has_on_demand(checks, offers);
    let expected = [
        "H100",
        "A100",
        "A10G",
        "T4",
        "L40S",
        "RTXPRO4500",
        "RTXPRO6000",
        "L4",
    ];
    contains_all(checks, &all_gpus(offers), &expected, "GPU");
}

fn azure(checks: &mut Checks, offers: &[Offer<'_>]) {
    in_places(checks, offers, "Standard_D2s_v3", words(AZURE_D2S_V3));
    has_spot(checks, offers);
    has_on_demand(checks, offers);
    exactly(checks, offers, &["A100", "A10", "H100NVL", "H200", "T4", "V100"]);
    a100_memories(checks, offers);
}

fn gcp(checks: &mut Checks, offers: &[Offer<'_>]) {
    let zones = GCP_E2_HIGHCPU_2.split_whitespace().flat_map(|entry| {
        let (region, zones) = entry.split_once('/').unwrap_or((entry, ""));
        zones
            .chars()
            .map(|zone| format!("{region}-{zone}"))
            .collect::<Vec<_>>()
    });
    in_places(checks, offers, "e2-highcpu-2", zones);
    has_spot(checks, offers);
    has_on_demand(checks, offers);
    let nvidia = gpus(offers, |offer| offer.gpu_vendor() == Some(Vendor::Nvidia));
    contains_all(
        checks,
        &nvidia,
        &["B200", "H100", "A100", "L4", "RTXPRO6000", "T4", "V100"],
        "GPU",
    );
    let tpus = gpus(offers, |offer| offer.gpu_vendor() == Some(Vendor::Google));
    for generation in ["v2-", "v3-", "v5litepod-", "v5p-"] {
        let found = tpus.iter().any(|name| name.starts_with(generation));
        checks.whole(found, || format!("there is no TPU `{generation}*`"));
    }
    a100_memories(checks, offers);
}

fn lambdalabs(checks: &mut Checks, offers: &[Offer<'_>]) {
    contains_all(checks, &all_gpus(offers), &["A10", "A100", "H100"], "GPU");
    has_on_demand(checks, offers);
    no_spot(checks, offers);
    let found: Names<'_> = offers.iter().map(Offer::location).collect();
    for missing in LAMBDALABS
        .split_whitespace()
        .filter(|place| !found.contains(place))
    {
        checks.whole(false, || format!("location `{missing}` is missing"));
    }
}

fn fabrics(offer: &Offer<'_>) -> Vec<String> {
    let data: serde_json::Value = serde_json::from_str(offer.provider_data()).unwrap_or_default();
    let names = data
        .get("fabrics")
        .and_then(|fabrics| fabrics.as_array())
        .cloned()
        .unwrap_or_default();
    names
        .iter()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect()
}

fn nebius(checks: &mut Checks, offers: &[Offer<'_>]) {
    contains_all(
        checks,
        &all_gpus(offers),
        &["RTXPRO6000", "L40S", "H100", "H200", "B200"],
        "GPU",
    );
    has_cpus(checks, offers);
    has_spot(checks, offers);
    has_on_demand(checks, offers);
    for place in ["eu-north1", "eu-west1"] {
        let found = offers.iter().any(|offer| offer.location() == place);
        checks.whole(found, || format!("location `{place}` is missing"));
    }
    for offer in offers {
        let names = fabrics(offer);
        let distinct: BTreeSet<&String> = names.iter().collect();
        checks.row(distinct.len() == names.len(), offer, || {
            "a fabric is listed twice".into()
        });
    }
    let sample = |name: &str| {
        offers
            .iter()
            .find(|offer| offer.instance_name() == name && offer.location() == "eu-north1")
    };
    match sample("gpu-h100-sxm 8gpu-128vcpu-1600gb") {
        None => checks.whole(false, || {
            "`gpu-h100-sxm 8gpu-128vcpu-1600gb` is missing in `eu-north1`".into()
        }),
        Some(offer) => {
            let names = fabrics(offer);
            for fabric in ["fabric-2", "fabric-3", "fabric-4", "fabric-6"] {
                let listed = names.iter().any(|name| name == fabric);
                checks.row(listed, offer, || format!("fabric `{fabric}` is missing"));
            }
        }
    }
    match sample("gpu-h100-sxm 1gpu-16vcpu-200gb") {
        None => checks.whole(false, || {
            "`gpu-h100-sxm 1gpu-16vcpu-200gb` is missing in `eu-north1`".into()
        }),
        Some(offer) => checks.row(fabrics(offer).is_empty(), offer, || {
            "a single GPU has no fabric".into()
        }),
    }
}

fn oci(checks: &mut Checks, offers: &[Offer<'_>]) {
    contains_all(checks, &all_gpus(offers), &["P100", "V100", "A10", "A100"], "GPU");
    has_cpus(checks, offers);
    has_spot(checks, offers);
    has_on_demand(checks, offers);
    for offer in offers {
        let flagged = offer.flags().any(|flag| flag == "oci-spot");
        checks.row(offer.spot() == flagged, offer, || {
            "the flag `oci-spot` must be on spot offers only".into()
        });
    }
    for family in ["VM.Standard", "BM.Standard", "VM.GPU", "BM.GPU"] {
        let found = offers
            .iter()
            .any(|offer| offer.instance_name().starts_with(family));
        checks.whole(found, || format!("there is no `{family}*` shape"));
    }
    let count = |wanted: fn(i64) -> bool| offers.iter().filter(|offer| wanted(offer.gpu_count())).count();
    let counts = [
        offers.len(),
        count(|gpus| gpus <= 1),
        count(|gpus| gpus == 0),
        count(|gpus| gpus == 1),
    ];
    checks.whole(counts.is_sorted_by(|more, fewer| more > fewer), || {
        format!("expected more offers of any size than of 0 or 1 GPU, than of 0, than of 1: {counts:?}")
    });
}

/// GPU names pods of this provider have carried; a healthy catalogue shows more than seven of them.
const RUNPOD_GPUS: &[&str] = &[
    "A100",
    "A30",
    "A40",
    "A4000",
    "A4500",
    "A5000",
    "A6000",
    "B200",
    "B300",
    "H100",
    "H100NVL",
    "H200",
    "H200NVL",
    "L4",
    "L40",
    "L40S",
    "MI300X",
    "RTX2000Ada",
    "RTX3070",
    "RTX3080",
    "RTX3080Ti",
    "RTX3090",
    "RTX3090Ti",
    "RTX4000Ada",
    "RTX4070Ti",
    "RTX4080",
    "RTX4080SUPER",
    "RTX4090",
    "RTX5000Ada",
    "RTX5080",
    "RTX5090",
    "RTX6000Ada",
    "RTXPRO6000",
    "RTXPRO6000WK",
    "V100",
];

fn runpod(checks: &mut Checks, offers: &[Offer<'_>]) {
    let found: Names<'_> = offers.iter().map(Offer::location).collect();
    let missing: Vec<&str> = RUNPOD
        .split_whitespace()
        .filter(|place| !found.contains(place))
        .collect();
    checks.whole(missing.len() <= 4, || {
        format!("too many locations are missing: {}", missing.join(", "))
    });
    let known = all_gpus(offers)
        .iter()
        .filter(|name| RUNPOD_GPUS.contains(name))
        .count();
    checks.whole(known > 7, || format!("only {known} known GPU models are offered"));
    has_cpus(checks, offers);
    for offer in offers.iter().filter(|offer| offer.gpu_count() == 0) {
        checks.row(offer.flags().any(|flag| flag == "runpod-cpu"), offer, || {
            "flag `runpod-cpu` is missing".into()
        });
        checks.row(!offer.spot(), offer, || "a CPU offer cannot be spot".into());
        checks.row(offer.location().contains('-'), offer, || {
            "a CPU offer must name a data centre".into()
        });
    }
}

fn verda(checks: &mut Checks, offers: &[Offer<'_>]) {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for offer in offers {
        *places.entry(offer.location()).or_default() += 1;
    }
    for place in ["FIN-01", "FIN-02"] {
        checks.whole(places.get(place).is_some_and(|count| *count > 1), || {
            format!("`{place}` has at most one offer")
        });
    }
    for spot in [true, false] {
        let count = offers.iter().filter(|offer| offer.spot() == spot).count();
        checks.whole(count > 1, || format!("at most one offer has spot = {spot}"));
    }
    exactly(
        checks,
        offers,
        &[
            "B200",
            "B300",
            "H200",
            "H100",
            "A100",
            "RTX6000Ada",
            "RTXPRO6000",
            "A6000",
            "V100",
            "L40S",
        ],
    );
}

fn cloudrift(checks: &mut Checks, offers: &[Offer<'_>]) {
    for offer in offers {
        let known = offer
            .gpu_name()
            .is_none_or(|name| ["MI350X", "RTX4090", "RTX5090", "RTXPRO6000"].contains(&name));
        checks.row(known, offer, || {
            format!("GPU `{}` is not expected", offer.gpu_name().unwrap_or_default())
        });
    }
    for count in [1, 2] {
        let found = offers.iter().any(|offer| offer.gpu_count() == count);
        checks.whole(found, || format!("there is no offer with {count} GPUs"));
    }
}

fn jarvislabs(checks: &mut Checks, offers: &[Offer<'_>]) {
    has_gpus(checks, offers);
    no_spot(checks, offers);
    for offer in offers {
        let known =
            ["india-01", "india-chennai-01", "india-noida-01", "europe-01"].contains(&offer.location());
        checks.row(known, offer, || {
            format!("location `{}` is not expected", offer.location())
        });
        checks.row(!offer.instance_name().contains(' '), offer, || {
            "the name has a blank".into()
        });
        let nvidia = offer.gpu_vendor().is_none_or(|vendor| vendor == Vendor::Nvidia);
        checks.row(nvidia, offer, || "a GPU is not NVIDIA's".into());
    }
}

fn seeweb(checks: &mut Checks, offers: &[Offer<'_>]) {
    no_spot(checks, offers);
    for offer in offers {
        checks.row(offer.gpu_vendor() == Some(Vendor::Nvidia), offer, || {
            "every offer has an NVIDIA GPU".into()
        });
        checks.row(offer.disk_size().is_some(), offer, || {
            "disk_size is missing".into()
        });
    }
}
