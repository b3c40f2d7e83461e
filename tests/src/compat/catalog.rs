//! The recorded prices, served as the reference's catalogue archive: `<provider>/version` holds a version,
//! `<provider>/<version>/catalog.zip` a `<provider>.csv`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Cursor, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

const VERSION: &str = "golden-1";

/// A file server for one catalogue. Its thread ends with the process.
pub struct Catalog {
    port: u16,
}

impl Catalog {
    /// Serves the CSV files of a folder.
    pub fn serve(folder: &Path) -> Result<Catalog> {
        let files = Arc::new(archive(folder)?);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let files = Arc::clone(&files);
                thread::spawn(move || answer(stream, &files));
            }
        });
        Ok(Catalog { port })
    }

    /// What `GPUHUNT_CATALOG_URL` is to be.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

type Files = HashMap<String, Vec<u8>>;

fn archive(folder: &Path) -> Result<Files> {
    let mut files = Files::new();
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        let provider = path
            .file_stem()
            .context("a file without a name")?
            .to_string_lossy()
            .into_owned();
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        zip.start_file(format!("{provider}.csv"), SimpleFileOptions::default())?;
        zip.write_all(&fs_err::read(&path)?)?;
        files.insert(
            format!("/{provider}/{VERSION}/catalog.zip"),
            zip.finish()?.into_inner(),
        );
        files.insert(format!("/{provider}/version"), VERSION.into());
    }
    Ok(files)
}

/// One request per connection.
fn answer(stream: TcpStream, files: &Files) {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    if reader.read_line(&mut request).is_err() {
        return;
    }
    let mut header = String::new();
    while reader.read_line(&mut header).is_ok_and(|length| length > 2) {
        header.clear();
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default().replace("//", "/");
    let (status, body) = match files.get(&path) {
        Some(body) => ("200 OK", body.as_slice()),
        None => ("404 Not Found", b"".as_slice()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = reader.into_inner();
    // A client that went away needs no answer.
    stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body))
        .ok();
}
