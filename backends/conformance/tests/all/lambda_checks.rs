//! What each backend for Lambda has to do, by whatever it is described.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dstack_backend::Env;
use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Subject, machine, sizes_of_catalog, with_machines,
};
use dstack_compute::{BackendKind, ComputeError, Machine};
use dstack_emulator_lambda::{Lambda, Size, Times, USUAL};
use dstack_model::instances::InstanceAvailability;
use dstack_units::CpuArchitecture;

use crate::with_key;

/// A cloud of this emulator, with the backend under test.
pub(crate) type MakeCloud = fn(Lambda) -> Cloud;

/// The cloud of an emulator, with a backend of this type.
pub(crate) fn cloud_of(emulator: Lambda, name: &str, kind: fn(Env) -> Arc<dyn BackendKind>) -> Cloud {
    let refused = vec![(with_key(name, "wrong"), &["creds.api_key"][..])];
    Cloud::new(Arc::new(emulator), kind, with_key(name, CANARY), refused)
}

/// All sizes of the catalogue.
pub(crate) fn sizes() -> Vec<Size> {
    static SIZES: LazyLock<Vec<Size>> = LazyLock::new(|| {
        sizes_of_catalog("lambdalabs", &["lambda-arm"], |row| Size {
            name: row.instance_name().to_owned(),
            region: row.location().to_owned(),
        })
    });
    SIZES.clone()
}

/// One that has everything.
pub(crate) fn emulator() -> Lambda {
    Lambda::new(CANARY, sizes())
}

pub(crate) async fn two_machines(cloud_of: MakeCloud) -> (Cloud, Vec<Subject<Machine>>) {
    with_machines(cloud_of(emulator()), 2).await
}

pub(crate) async fn what_is_free_is_told_for_each_region(cloud_of: MakeCloud) {
    let all = sizes();
    let free = all[0].clone();
    let elsewhere = Size {
        region: "nowhere-1".to_owned(),
        ..all.iter().find(|size| size.name != free.name).unwrap().clone()
    };
    let cloud = cloud_of(Lambda::new(CANARY, vec![free.clone(), elsewhere]));
    let offers = cloud.offers(&Cloud::requirements()).await;
    assert!(offers.len() > 100, "{}", offers.len());
    let available = offers
        .iter()
        .filter(|offer| offer.availability == InstanceAvailability::Available);
    let places: Vec<_> = available
        .map(|offer| (&*offer.instance.name, &*offer.region))
        .collect();
    assert_eq!(places, [(&*free.name, &*free.region)]);
    let arm = |offer: &&dstack_model::offers::InstanceOfferWithAvailability| {
        offer.instance.resources.cpu_arch == Some(CpuArchitecture::Arm)
    };
    assert!(offers.iter().any(|offer| arm(&offer)), "no GH200");
}

pub(crate) async fn refusals_are_told_apart(cloud_of: MakeCloud) {
    for (status, code) in [
        (400, "global/quota-exceeded"),
        (403, "global/invalid-address"),
        (403, "global/account-inactive"),
        (400, "global/invalid-parameters"),
    ] {
        let emulator = emulator();
        emulator.refuse_launches(status, code);
        let cloud = cloud_of(emulator);
        let subject = machine(&cloud).await;
        let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
        let is_expected = match code {
            "global/quota-exceeded" => matches!(error, ComputeError::NoQuota(_)),
            "global/account-inactive" => matches!(error, ComputeError::Credentials(_)),
            _ => matches!(error, ComputeError::Refused(_)),
        };
        assert!(is_expected, "{code}: {error:?}");
    }
}

/// The API takes one request a second, and one launch in twelve: whoever asks sooner is told 429, which is an error here.
pub(crate) async fn requests_and_launches_are_as_far_apart_as_the_api_wants(cloud_of: MakeCloud) {
    let times = Times {
        request_interval: Duration::from_secs(1),
        ..USUAL
    };
    let another = cloud_of(emulator());
    let subjects = [
        machine(&another).await,
        machine(&another).await,
        machine(&another).await,
    ];
    let emulator = Lambda::with_times(CANARY, sizes(), times);
    let cloud = cloud_of(emulator.clone());
    let backend = cloud.open();
    let lives = subjects.iter().map(async |subject| {
        let driver = Driver::with_backend(&cloud, Arc::clone(&backend));
        let place = driver.make(subject).await.unwrap();
        driver.remove(&subject.known(Some(place)), subject).await;
        let errors = driver.errors.lock().unwrap().clone();
        assert!(errors.iter().all(|error| !error.contains("429")), "{errors:?}");
    });
    futures_util::future::join_all(lives).await;
    assert_eq!(
        (emulator.ledger().count(), emulator.ledger().alive()),
        (3, Vec::new())
    );
    assert_eq!(emulator.key_names().len(), 1, "all share one key");
}
