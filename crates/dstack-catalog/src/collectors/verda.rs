//! Verda: instance types and locations, for holders of credentials. Every type is listed at every location, free there or not.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_system::Secret;
use serde_json::{Value, json};

use super::json::Json;
use crate::collect::sort_by_price;
use crate::http::{Http, HttpError};
use crate::{CollectContext, CollectError, Item, OfflineProvider, Provider, Vendor};

/// Where the API is.
pub const API_URL: &str = "https://api.verda.com/v1";

/// GPUs as the vendor describes them, after their number, and our names.
const GPUS: [(&str, &str); 13] = [
    ("B200 SXM6 180GB", "B200"),
    ("B300 SXM6 268GB", "B300"),
    ("H200 SXM5 141GB", "H200"),
    ("H100 SXM5 80GB", "H100"),
    ("A100 SXM4 80GB", "A100"),
    ("A100 SXM4 40GB", "A100"),
    ("RTX6000 Ada 48GB", "RTX6000Ada"),
    ("RTX 6000 Ada 48GB", "RTX6000Ada"),
    ("RTX PRO 6000 96GB", "RTXPRO6000"),
    ("RTX A6000 48GB", "A6000"),
    ("Tesla V100 16GB", "V100"),
    ("L40S 48GB", "L40S"),
    ("AMD 7900XTX", NOT_PUBLISHED),
];

/// There are no images with its drivers.
const NOT_PUBLISHED: &str = "RX7900XTX";

/// Collects Verda's offers.
#[derive(Debug)]
pub struct VerdaCollector {
    /// Base of the API.
    pub url: String,
    /// Id of the credentials.
    pub client_id: String,
    /// Secret of the credentials.
    pub client_secret: Secret,
    /// For the requests.
    pub http: Arc<Http>,
}

#[async_trait]
impl OfflineProvider for VerdaCollector {
    fn provider(&self) -> Provider {
        Provider::Verda
    }

    fn publishes(&self, item: &Item) -> bool {
        item.gpu_name.as_deref() != Some(NOT_PUBLISHED)
    }

    async fn collect(&self, context: &CollectContext) -> Result<Vec<Item>, CollectError> {
        let error = CollectError::http(Provider::Verda);
        let token = self.token().await.map_err(&error)?;
        let Some(token) = token.text("access_token") else {
            return Err(CollectError::unexpected(Provider::Verda, "no `access_token`"));
        };
        let types = self
            .get("instance-types?currency=usd", token)
            .await
            .map_err(&error)?;
        let locations = self.get("locations", token).await.map_err(&error)?;
        let (Some(types), Some(locations)) = (types.as_array(), locations.as_array()) else {
            return Err(CollectError::unexpected(Provider::Verda, "no list"));
        };
        for one in types
            .iter()
            .filter(|one| gpu_count(one) != 0 && gpu_name(one).is_none())
        {
            let described = one.at("gpu").text("description").unwrap_or_default();
            context
                .progress
                .warn(&format!("verda: unknown GPU `{described}`"));
        }
        let mut items = Vec::new();
        for spot in [true, false] {
            for location in locations.iter().filter_map(|location| location.text("code")) {
                items.extend(types.iter().filter_map(|one| offer(one, location, spot)));
            }
        }
        sort_by_price(&mut items);
        Ok(items)
    }
}

impl VerdaCollector {
    async fn token(&self) -> Result<Value, HttpError> {
        let ask = json!({
            "grant_type": "client_credentials",
            "client_id": self.client_id,
            "client_secret": self.client_secret.expose(),
        });
        self.http
            .post_json(&format!("{}/oauth2/token", self.url), &ask)
            .await
    }

    async fn get(&self, path: &str, token: &str) -> Result<Value, HttpError> {
        let request = self.http.client()?.get(format!("{}/{path}", self.url));
        self.http.json(request.bearer_auth(token)).await
    }
}

fn offer(one: &Value, location: &str, spot: bool) -> Option<Item> {
    let price = one.text(if spot { "spot_price" } else { "price_per_hour" })?;
    let gpus = gpu_count(one);
    let base = Item {
        price: price.parse().ok()?,
        cpu: one.at("cpu").int("number_of_cores")?,
        memory: one.at("memory").number("size_in_gigabytes")?,
        spot,
        ..Item::new(Provider::Verda, one.text("instance_type")?, location)
    };
    if gpus == 0 {
        return Some(base);
    }
    Some(Item {
        gpu_count: gpus,
        gpu_name: Some(gpu_name(one)?.to_owned()),
        gpu_memory: Some(one.at("gpu_memory").number("size_in_gigabytes")? / gpus as f64),
        gpu_vendor: Some(Vendor::Nvidia),
        ..base
    })
}

fn gpu_count(one: &Value) -> i64 {
    one.at("gpu").int("number_of_gpus").unwrap_or(0)
}

fn gpu_name(one: &Value) -> Option<&'static str> {
    let (count, kind) = one.at("gpu").text("description")?.split_once("x ")?;
    let is_number = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
    let known = GPUS.iter().find(|(described, _)| *described == kind);
    known.filter(|_| is_number).map(|(_, name)| *name)
}
