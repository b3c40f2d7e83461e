use proptest::prelude::*;

use super::*;

fn filtered(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut filter = Filter::new();
    let mut out = Vec::new();
    let now = Instant::now();
    for piece in pieces {
        filter.write(piece, now, |text| out.push(text.to_vec()));
    }
    filter.finish(|text| out.push(text.to_vec()));
    out
}

fn text(input: &str) -> String {
    String::from_utf8(filtered(&[input.as_bytes()]).concat()).unwrap()
}

#[test]
fn what_a_person_would_have_seen() {
    let cases = [
        ("hello\r\n", "hello\n"),
        ("a\n\n\nb\n", "a\n\n\nb\n"),
        ("no end", "no end\n"),
        ("trailing   \r\n", "trailing\n"),
        ("tab\there\n", "tab\there\n"),
        ("bell\x07null\0\x7f\n", "bellnull\n"),
        ("10%\r20%\r100%\n", "100%\n"),
        ("long line\rlo\n", "lo\u{6e}g line\n"),
        ("abc\x08\x08X\n", "aXc\n"),
        ("\x1b[1;31mred\x1b[0m\n", "red\n"),
        ("\x1b[?25lhidden\x1b[?25h\n", "hidden\n"),
        ("one\ntwo\n\x1b[2Aup\n\x1b[1Bdown\n", "upe\ntwo\ndown\n"),
        ("abc\x1b[2DX\n", "aXc\n"),
        ("a\x1b[3Cb\n", "a   b\n"),
        ("abcdef\x1b[3GX\n", "abXdef\n"),
        ("abcdef\x1b[3G\x1b[K\n", "ab\n"),
        ("abcdef\x1b[3G\x1b[1K\n", "   def\n"),
        ("abcdef\x1b[2Knext\n", "      next\n"),
        ("a\nb\x1b[2Jclean\n", "clean\n"),
        ("a\nb\nc\x1b[2;1HB\x1b[J\n", "a\nB\n"),
        ("a\nb\nc\x1b[2;1H\x1b[1J\n", "\nc\n"),
        ("x\x1b(By\n", "x(By\n"),
        ("x\x1b[12\ny\n", "x[12\ny\n"),
        ("x\x1b[1", "x[1\n"),
        ("\x1b]0;title\x07text\n", "]0;titletext\n"),
        ("ä€😀\n", "ä€😀\n"),
        (
            "\x1b[999999999999999999999Cx\n",
            &format!("{}x\n", " ".repeat(4096)),
        ),
        ("", ""),
        ("\n", "\n"),
    ];
    for (input, output) in cases {
        assert_eq!(text(input), output, "{input:?}");
    }
}

#[test]
fn invalid_utf8_is_dropped() {
    assert_eq!(
        filtered(&[b"a\xffb\xc3(\xe2\x82z\xf0\x9f\x98\x80\xc3\xc3\xa4\n"]).concat(),
        "ab(z😀ä\n".as_bytes()
    );
}

#[test]
fn a_long_line_comes_in_parts_and_stays_one_line() {
    let line = "x".repeat(100_000);
    let pieces = filtered(&[line.as_bytes(), b"\r\nnext\r\n"]);
    assert!(pieces.iter().all(|piece| piece.len() <= MAX_CHUNK_BYTES));
    assert_eq!(
        String::from_utf8(pieces.concat()).unwrap(),
        format!("{line}\nnext\n")
    );
}

#[test]
fn finished_lines_come_soon() {
    let mut filter = Filter::new();
    let mut out = Vec::new();
    let now = Instant::now();
    assert_eq!(filter.deadline(), None);
    filter.write(b"line\r\npart", now, |text| out.extend_from_slice(text));
    let deadline = filter.deadline().unwrap();
    assert!(out.is_empty() && deadline <= now + Duration::from_millis(50));
    filter.flush_due(deadline, |text| out.extend_from_slice(text));
    assert_eq!((out.as_slice(), filter.deadline()), (&b"line\n"[..], None));
    filter.write(b"ial\r\n", deadline, |text| out.extend_from_slice(text));
    filter.finish(|text| out.extend_from_slice(text));
    assert_eq!(out, b"line\npartial\n");
}

#[test]
fn redrawn_lines_wait_for_rest_but_not_for_ever() {
    let mut filter = Filter::new();
    let start = Instant::now();
    let mut out = String::new();
    for frame in 0..100u64 {
        let now = start + Duration::from_millis(100 * frame);
        filter.write(
            format!("\x1b[2Aa {frame}\r\nb {frame}\r\n").as_bytes(),
            now,
            |text| {
                out.push_str(std::str::from_utf8(text).unwrap());
            },
        );
    }
    filter.finish(|text| out.push_str(std::str::from_utf8(text).unwrap()));
    let shown = out.lines().filter(|line| line.starts_with('a')).count();
    assert!((2..=5).contains(&shown), "{out}");
    assert!(out.ends_with("b 99\n"), "{out}");
}

fn output() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => "[ -~äß€😀]{0,20}".prop_map(String::into_bytes),
        3 => Just(b"\r\n".to_vec()),
        1 => Just(b"\r".to_vec()),
        1 => Just(b"\x08".to_vec()),
        2 => "\x1b\\[[?]?[0-9;]{0,5}[A-HJKfmhlz]".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn plain_lines_pass_unchanged(lines in prop::collection::vec("[!-~äß€😀\t]{0,50}", 0..50)) {
        let input: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        prop_assert_eq!(text(&input), input.replace('\r', ""));
    }

    #[test]
    fn chunks_do_not_matter(bytes in output(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20)) {
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(filtered(&pieces).concat(), filtered(&[&bytes]).concat());
    }

    #[test]
    fn pieces_are_short_valid_text(bytes in output(), repeat in 1usize..60) {
        for piece in filtered(&[&bytes.repeat(repeat)]) {
            prop_assert!(!piece.is_empty() && piece.len() <= MAX_CHUNK_BYTES);
            let text = std::str::from_utf8(&piece);
            prop_assert!(text.is_ok_and(|text| !text.contains(['\r', '\x1b', '\x08'])));
        }
    }

    #[test]
    fn memory_is_bounded(bytes in output(), repeat in 1usize..200) {
        let mut filter = Filter::new();
        for _ in 0..repeat {
            filter.write(&bytes, Instant::now(), |_| {});
            prop_assert!(filter.screen.len() <= MAX_CHUNK_BYTES);
        }
    }
}
