//! The query cases of dstack 0.22.5's catalogue: count, order and rows.

use std::collections::BTreeMap;

use crate::support::{gunzip, snapshot};
use dstack_catalog::{Filter, FilterError, Offer, Provider, Snapshot};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn sha256(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

fn as_json(offer: &Offer<'_>) -> Value {
    let item = offer.to_item();
    let mut value = serde_json::to_value(&item).unwrap();
    let fields = value.as_object_mut().unwrap();
    fields.remove("provider");
    fields.insert("ref".into(), offer.reference().into());
    value
}

fn run(snapshot: &Snapshot, query: &Value) -> Result<Value, FilterError> {
    let filter = Filter::from_json(&query.to_string())?;
    let offers: Vec<Offer<'_>> = snapshot.query(&filter)?.collect();
    let mut refs: Vec<String> = offers.iter().map(Offer::reference).collect();
    let ordered = sha256(&refs.join("\n"));
    refs.sort_unstable();
    let mut per_provider = BTreeMap::new();
    for offer in &offers {
        *per_provider.entry(offer.provider().name()).or_insert(0) += 1;
    }
    Ok(json!({
        "count": offers.len(),
        "ordered_sha256": ordered,
        "set_sha256": sha256(&refs.join("\n")),
        "per_provider": per_provider,
        "first": offers.iter().take(20).map(as_json).collect::<Vec<_>>(),
    }))
}

#[test]
fn every_query_case_gives_the_same_offers_in_the_same_order() {
    let cases: Vec<Value> = serde_json::from_slice(&gunzip("queries.json.gz")).unwrap();
    assert_eq!(cases.len(), 70);
    let mut snapshots: BTreeMap<Vec<Provider>, Snapshot> = BTreeMap::new();
    for case in &cases {
        let online: Vec<Provider> = case["online_providers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| Provider::from_name(name.as_str().unwrap()).unwrap())
            .collect();
        let snapshot = snapshots
            .entry(online.clone())
            .or_insert_with(|| self::snapshot(&online));
        let id = case["id"].as_str().unwrap();
        match run(snapshot, &case["query"]) {
            Ok(found) => {
                let mut expected = case["expect"].clone();
                expected
                    .as_object_mut()
                    .unwrap()
                    .retain(|name, _| found.get(name).is_some());
                assert_eq!(found, expected, "{id}: {}", case["description"]);
            }
            Err(error) => assert_eq!(
                error.to_string(),
                case["error"]["message"].as_str().unwrap(),
                "{id}"
            ),
        }
    }
}

#[test]
fn a_table_keeps_its_offers_as_bytes() {
    for provider in [Provider::Nebius, Provider::Vastai, Provider::Gcp] {
        let table = crate::support::table(provider);
        let bytes = table.to_bytes();
        let (read, rest) =
            dstack_catalog::Table::from_bytes(&bytes, dstack_catalog::Origin::Builtin).unwrap();
        assert!(rest.is_empty());
        assert_eq!(read.info().version, table.info().version);
        assert!(
            table
                .offers()
                .map(|offer| offer.to_item())
                .eq(read.offers().map(|offer| offer.to_item()))
        );
    }
}
