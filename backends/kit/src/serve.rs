use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;

/// Serves an API on a port of the loopback interface, for as long as this process runs.
#[allow(clippy::disallowed_methods)] // tests have no runtime of their own
pub fn serve(router: Router) -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
                .await
                .unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    told.recv().unwrap()
}
