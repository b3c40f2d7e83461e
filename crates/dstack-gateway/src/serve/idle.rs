//! Whether requests have come and are under way on a connection.

use std::sync::Arc;
use std::time::Duration;

use dstack_proxy::ProxyBody;
use http::Response;
use http_body_util::BodyExt as _;
use tokio::sync::watch;
use tokio::time::timeout;

/// Requests of a connection.
#[derive(Debug, Clone)]
pub(super) struct Requests(Arc<watch::Sender<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    /// One has come.
    begun: bool,
    under_way: usize,
}

/// A request that is under way until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<watch::Sender<Counts>>);

impl Requests {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }

    /// One more.
    pub(super) fn begin(&self) -> UnderWay {
        self.0.send_modify(|counts| {
            counts.begun = true;
            counts.under_way += 1;
        });
        UnderWay(Arc::clone(&self.0))
    }

    /// Waits until one has come.
    pub(super) async fn begun(&self) {
        // The sender is here: it is heard.
        let _ = self.0.subscribe().wait_for(|counts| counts.begun).await;
    }

    /// Waits until there has been none for so long.
    pub(super) async fn idle(&self, limit: Duration) {
        let mut counts = self.0.subscribe();
        loop {
            let is_idle = counts.borrow_and_update().under_way == 0;
            match is_idle {
                true if timeout(limit, counts.changed()).await.is_err() => return,
                true => {}
                false => drop(counts.changed().await),
            }
        }
    }
}

impl UnderWay {
    /// Until the answer has been sent, or cannot be.
    pub(super) fn until_sent(self, response: Response<ProxyBody>) -> Response<ProxyBody> {
        // Held by what is called when the body breaks: it is dropped with the body.
        response.map(|body| {
            let hold = move |error| {
                let _under_way = &self;
                error
            };
            body.map_err(hold).boxed_unsync()
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|counts| counts.under_way -= 1);
    }
}
