//! Reading files and archives, whole and damaged.

use std::fmt::Write as _;
use std::io::{Cursor, Write as _};

use crate::support::{data, gunzip, info, snapshot, table};
use dstack_catalog::{
    ArchiveError, DirectoryError, Offer, Origin, Provider, ReadError, Snapshot, Table, TableInfo, Vendor,
    check_file, check_table, diff, read_archive, read_csv, read_directory, read_single_archive,
    write_archive, write_csv, write_single_archive,
};
use proptest::prelude::*;
use zip::write::{SimpleFileOptions, ZipWriter};

const HEADER: &str = "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags,cpu_arch,provider_data";

fn read(text: &str) -> (Table, Vec<String>) {
    let (table, warnings) = read_csv(info(Provider::Aws), text.as_bytes()).unwrap();
    (table, warnings.first.iter().map(ToString::to_string).collect())
}

fn zip_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn files_are_written_as_they_were_read() {
    for provider in Provider::offline().chain([Provider::Vastai, Provider::Digitalocean]) {
        let table = table(provider);
        let mut written = Vec::new();
        write_csv(table.offers(), &mut written).unwrap();
        let (again, warnings) = read_csv(info(provider), written.as_slice()).unwrap();
        assert_eq!(warnings.total, 0);
        assert!(
            table
                .offers()
                .map(|offer| offer.to_item())
                .eq(again.offers().map(|offer| offer.to_item())),
            "{provider}"
        );
        // Byte by byte, but for numbers that had no fraction.
        if provider == Provider::Lambdalabs {
            assert_eq!(
                String::from_utf8(written).unwrap(),
                String::from_utf8(gunzip("lambdalabs.csv.gz")).unwrap()
            );
        }
    }
}

#[test]
fn bad_rows_are_left_out_with_their_line() {
    let text = format!(
        "{HEADER}\r\n\
         a,r,1.5,2,4,0,,,False,,,,x86,{{}}\r\n\
         \r\n\
         b,r,x,2,4,0,,,False,,,,x86,{{}}\r\n\
         c,r,1,2.0,4,0,,,False,,,,x86,{{}}\r\n\
         d,r,1,2,4,0,,,maybe,,,,x86,{{}}\r\n\
         ,r,1,2,4,0,,,False,,,,x86,{{}}\r\n\
         e,r,1,2\r\n\
         f,r,1,2,4,1,T4,16,False,,xyz,,x86,{{}}\r\n\
         g,r,1,2,4,0,,,False,,,,riscv,{{}}\r\n\
         h,\"r\n2\",1,2,4,0,,,False,,,,x86,{{\r\n\
         i,r, 1_0.5 ,+2,4,0,,,tRUE,1e2,,,ARM,\r\n"
    );
    let (table, warnings) = read(&text);
    let offers: Vec<_> = table.offers().collect();
    assert_eq!(
        offers.iter().map(Offer::reference).collect::<Vec<_>>(),
        ["aws:0", "aws:9"]
    );
    let last = offers[1].to_item();
    assert_eq!(
        (last.price, last.cpu, last.spot, last.disk_size),
        (10.5, 2, true, Some(100.0))
    );
    assert_eq!(table.offer_of_row(9).unwrap().instance_name(), "i");
    assert!(table.offer_of_row(5).is_none());
    let prefix = "Skipping malformed row in aws catalog at line ";
    let expected = [
        "4: Cannot parse field 'price': could not convert string to float: 'x'",
        "5: Cannot parse field 'cpu': invalid literal for int() with base 10: '2.0'",
        "6: Cannot parse field 'spot': Not a boolean: 'maybe'",
        "7: Required field 'instance_name' is empty",
        "8: Required field 'gpu_count' is missing",
        "9: 'xyz' is not a valid AcceleratorVendor",
        "10: 'riscv' is not a valid CPUArchitecture",
    ];
    for (warning, expected) in warnings.iter().zip(expected) {
        assert_eq!(warning.strip_prefix(prefix).unwrap(), expected);
    }
    assert_eq!(warnings.len(), 8);
    assert!(
        warnings[7].starts_with("Skipping malformed row in aws catalog at line 12: "),
        "{}",
        warnings[7]
    );
}

#[test]
fn old_files_are_completed() {
    let text = "location,instance_name,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,surplus\n\
                r,a,1,2,4,1,A100,40,False,,x\n\
                r,b,1,2,4,1,tpu-v2-8,64,False,,x\n\
                r,c,1,2,4,0,,,False,,x\n";
    let (table, warnings) = read(text);
    assert!(warnings.is_empty());
    let items: Vec<_> = table.offers().map(|offer| offer.to_item()).collect();
    assert_eq!(items[0].gpu_vendor, Some(Vendor::Nvidia));
    assert_eq!(
        (items[1].gpu_name.as_deref(), items[1].gpu_vendor),
        (Some("v2-8"), Some(Vendor::Google))
    );
    assert_eq!((items[2].gpu_vendor, items[2].provider_data.text()), (None, "{}"));
}

#[test]
fn what_is_no_catalog_is_refused_and_named() {
    let refused = |bytes: &[u8]| read_csv(info(Provider::Aws), bytes).unwrap_err().to_string();
    assert!(refused(b"<html><body>Sign in</body></html>").contains("web page"));
    assert!(refused(b"{\"error\": 1}").contains("JSON"));
    assert!(refused(b"PK\x03\x04").contains("zip"));
    assert!(refused(HEADER.replace("price,", "").as_bytes()).contains("`price` is missing"));
    assert!(refused(format!("{HEADER}\nx\n").as_bytes()).contains("none of the 1 rows"));
    assert!(read_csv(info(Provider::Aws), &b""[..]).unwrap().0.is_empty());
    assert!(
        read_csv(info(Provider::Aws), format!("{HEADER}\n").as_bytes())
            .unwrap()
            .0
            .is_empty()
    );
}

#[test]
fn huge_fields_cost_one_row() {
    let mut text = format!("{HEADER}\na,r,1,2,4,0,,,False,,,,x86,{{}}\n");
    writeln!(text, "{},r,1,2,4,0,,,False,,,,x86,{{}}", "n".repeat(200_000)).unwrap();
    writeln!(text, "{},r,1,2,4,0,,,False,,,,x86,{{}}", "n".repeat(3_000_000)).unwrap();
    text.push_str("b,r,1,2,4,0,,,False,,,,x86,{}\n");
    let (table, warnings) = read(&text);
    assert_eq!(
        table.offers().map(|offer| offer.row()).collect::<Vec<_>>(),
        [0, 3]
    );
    assert!(
        warnings[0].contains("field larger") && warnings[1].contains("longer than 1 MiB"),
        "{warnings:?}"
    );
}

#[test]
fn endless_files_end() {
    struct Endless(u64);
    impl std::io::Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            buffer.fill(b'x');
            self.0 += buffer.len() as u64;
            Ok(buffer.len())
        }
    }
    let mut source = Endless(0);
    let error = read_csv(info(Provider::Aws), &mut source).unwrap_err();
    assert!(matches!(error, ReadError::TooLarge));
    assert!(source.0 < dstack_catalog::MAX_FILE_BYTES + (1 << 22));
}

#[test]
fn archives_hold_what_was_packed() {
    let nebius = table(Provider::Nebius);
    let archive = write_archive(&nebius).unwrap();
    let (read, _) = read_archive(&info(Provider::Nebius), &archive).unwrap();
    assert!(
        nebius
            .offers()
            .map(|offer| offer.to_item())
            .eq(read.offers().map(|offer| offer.to_item()))
    );
    assert!(
        matches!(read_archive(&info(Provider::Aws), &archive), Err(ArchiveError::Missing(name)) if name == "aws.csv")
    );

    let some = [Provider::Nebius, Provider::Verda, Provider::Vastai];
    let all = Snapshot::new(some.map(|provider| std::sync::Arc::new(table(provider))));
    let single = write_single_archive(&all, "20260818-7").unwrap();
    let versioned = |provider, version: &str| TableInfo {
        version: version.into(),
        ..info(provider)
    };
    let (tables, _) = read_single_archive(versioned, &single).unwrap();
    assert_eq!(tables.len(), 2, "published providers only");
    assert!(tables.iter().all(|table| table.info().version == "20260818-7"));
    assert_eq!(tables.iter().map(Table::len).sum::<usize>(), 81 + 192);
    let old = zip_of(&[
        ("datacrunch.csv", &gunzip("verda.csv.gz")),
        ("cudo.csv", b"x"),
        ("version", b"1\n"),
    ]);
    let (tables, _) = read_single_archive(versioned, &old).unwrap();
    assert_eq!((tables.len(), tables[0].info().provider), (1, Provider::Verda));
}

#[test]
fn damaged_archives_are_refused_and_named() {
    let refused = |bytes: &[u8]| read_archive(&info(Provider::Nebius), bytes).unwrap_err();
    let good = write_archive(&table(Provider::Nebius)).unwrap();
    assert!(refused(b"").to_string().contains("empty"));
    assert!(refused(b"<!DOCTYPE html>").to_string().contains("web page"));
    assert!(
        refused(&good[..good.len() / 2])
            .to_string()
            .contains("damaged or cut short")
    );
    let mut flipped = good.clone();
    flipped[200] ^= 0xff;
    assert!(matches!(
        refused(&flipped),
        ArchiveError::Read { .. } | ArchiveError::NotAZip { .. }
    ));
    // Names with directories in them lead nowhere.
    let tricks = zip_of(&[
        ("../nebius.csv", HEADER.as_bytes()),
        ("/etc/nebius.csv", b"x"),
        ("a/nebius.csv", b"x"),
    ]);
    assert!(matches!(refused(&tricks), ArchiveError::Missing(_)));
    let web = zip_of(&[("nebius.csv", b"<html>")]);
    assert!(matches!(
        refused(&web),
        ArchiveError::Read {
            source: ReadError::MissingColumn { .. },
            ..
        }
    ));
}

#[test]
fn a_bomb_goes_off_in_a_small_room() {
    // 300 MiB of one field in some hundred kilobytes.
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("aws.csv", SimpleFileOptions::default().large_file(true))
        .unwrap();
    let block = vec![b'x'; 1 << 20];
    for _ in 0..300 {
        zip.write_all(&block).unwrap();
    }
    let bomb = zip.finish().unwrap().into_inner();
    assert!(bomb.len() < 2 << 20);
    let error = read_archive(&info(Provider::Aws), &bomb).unwrap_err();
    assert!(
        matches!(
            error,
            ArchiveError::Read {
                source: ReadError::TooLarge,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn directories_are_read_file_by_file() {
    let found = read_directory(&data("")).unwrap();
    assert_eq!(found.snapshot.tables().count(), 13);
    assert!(found.failed.is_empty());
    assert!(matches!(
        read_directory(&data("none")),
        Err(DirectoryError::Io { .. })
    ));
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        read_directory(dir.path()),
        Err(DirectoryError::Empty(_))
    ));
    fs_err::write(dir.path().join("aws.csv"), "<html>").unwrap();
    fs_err::write(
        dir.path().join("oci.zip"),
        write_archive(&table(Provider::Oci)).unwrap(),
    )
    .unwrap();
    let found = read_directory(dir.path()).unwrap();
    assert_eq!(found.snapshot.len(), 1978);
    assert_eq!(found.failed.len(), 1);
    assert!(
        found.failed[0].1.to_string().contains("aws.csv"),
        "{}",
        found.failed[0].1
    );
}

#[test]
fn rules_name_the_row_that_breaks_them() {
    let clean = [
        "verda",
        "oci",
        "lambdalabs",
        "cloudrift",
        "jarvislabs",
        "seeweb",
        "digitalocean",
        "vastai",
    ];
    for name in clean {
        let provider = Provider::from_name(name).unwrap();
        let broken = check_file(info(provider), &gunzip(&format!("{name}.csv.gz"))).unwrap();
        let expected: &[&str] = match provider {
            // What the sources of the test data lack.
            Provider::Verda => &["verda: GPU `L40S` is missing", "verda: GPU `A6000` is missing"],
            _ => &[],
        };
        let mut broken: Vec<String> = broken.iter().map(ToString::to_string).collect();
        broken.sort();
        let mut expected: Vec<String> = expected.iter().map(|text| (*text).to_owned()).collect();
        expected.sort();
        assert_eq!(broken, expected, "{name}");
    }
    let text = format!(
        "{HEADER}\nok,r,1,2,4,0,,,False,,,,x86,{{}}\nfree,r,0,2,4,0,,,false,,,,x86,{{}}\ngpu,r,1,2,4,1,,,True,0,,,,\n"
    );
    let broken: Vec<String> = check_file(info(Provider::Hotaisle), text.as_bytes())
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    for expected in [
        "hotaisle:1 (line 3): spot must be True or False, is \"false\"",
        "hotaisle:1 (line 3): price must be above 0, is 0",
        "hotaisle:2 (line 4): cpu_arch is empty",
        "hotaisle:2 (line 4): provider_data is empty",
        "hotaisle:2 (line 4): gpu_vendor is empty although gpu_count is above 0",
        "hotaisle:2 (line 4): gpu_name is missing although gpu_count is above 0",
        "hotaisle:2 (line 4): disk_size must be above 0 or empty, is 0",
    ] {
        assert!(
            broken.iter().any(|text| text == expected),
            "{expected} not in {broken:#?}"
        );
    }
    assert!(
        check_table(&Table::from_items(info(Provider::Lium), &[]))[0]
            .to_string()
            .contains("no offer")
    );
}

#[test]
fn differences_are_found_by_offer_not_by_row() {
    let before = snapshot(&[]);
    let mut items: Vec<_> = before
        .table(Provider::Nebius)
        .unwrap()
        .offers()
        .map(|offer| offer.to_item())
        .collect();
    let gone = items.remove(0);
    items[0].price += 1.0;
    let mut new = gone.clone();
    new.location = "mars".into();
    items.push(new);
    let mut after: Snapshot = before.clone();
    after.insert(std::sync::Arc::new(Table::from_items(
        info(Provider::Nebius),
        &items,
    )));
    let differences = diff(&before, &after);
    assert_eq!(differences.len(), 1);
    let nebius = &differences[0];
    assert_eq!(
        (nebius.new.len(), nebius.gone.len(), nebius.repriced.len()),
        (1, 1, 1)
    );
    assert_eq!(nebius.new[0].location(), "mars");
    assert_eq!(nebius.gone[0].instance_name(), gone.instance_name);
    assert_eq!(nebius.repriced[0].before + 1.0, nebius.repriced[0].offer.price());
    assert!(diff(&after, &after).is_empty());
}

#[test]
fn the_built_in_snapshot_is_that_of_the_data() {
    let builtin = dstack_catalog::builtin();
    let data = snapshot(&[]);
    for provider in Provider::offline() {
        let (built_in, given) = (builtin.table(provider).unwrap(), data.table(provider).unwrap());
        assert_eq!(built_in.info().origin, Origin::Builtin);
        assert!(
            built_in
                .offers()
                .map(|offer| offer.to_item())
                .eq(given.offers().map(|offer| offer.to_item())),
            "{provider}: run the example `pack` again"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        drop(read_csv(info(Provider::Aws), bytes.as_slice()));
        drop(read_archive(&info(Provider::Aws), &bytes));
        let _ = Table::from_bytes(&bytes, Origin::Cache);
        let mut rows = format!("{HEADER}\n").into_bytes();
        rows.extend(&bytes);
        drop(read_csv(info(Provider::Aws), rows.as_slice()));
    }

    #[test]
    fn no_damage_to_a_good_archive_panics(cut in 0usize..2000, at in 0usize..2000, value: u8) {
        let mut archive = write_archive(&Table::from_items(info(Provider::Aws), &[dstack_catalog::Item {
            price: 1.0, cpu: 1, memory: 1.0, ..dstack_catalog::Item::new(Provider::Aws, "a", "b")
        }])).unwrap();
        let length = archive.len();
        archive[at % length] = value;
        archive.truncate(length - cut % length);
        drop(read_archive(&info(Provider::Aws), &archive));
        let nebius = table(Provider::Nebius).to_bytes();
        let mut bytes = nebius[..nebius.len().min(6000)].to_vec();
        let length = bytes.len();
        bytes[at % length] = value;
        let _ = Table::from_bytes(&bytes, Origin::Cache);
    }

    #[test]
    fn fields_survive_writing_and_reading(name in "\\PC{1,12}", place in "[a-z,\"\r\n ]{1,8}", flags in proptest::collection::vec("[a-z-]{1,6}", 0..3), price in 0.0..1e6f64) {
        let item = dstack_catalog::Item {
            price, cpu: 3, memory: 0.1, flags, ..dstack_catalog::Item::new(Provider::Aws, name, place)
        };
        let table = Table::from_items(info(Provider::Aws), std::slice::from_ref(&item));
        let mut text = Vec::new();
        write_csv(table.offers(), &mut text).unwrap();
        let (read, warnings) = read_csv(info(Provider::Aws), text.as_slice()).unwrap();
        prop_assert_eq!(warnings.total, 0);
        prop_assert_eq!(read.offer(0).unwrap().to_item(), item);
    }
}
