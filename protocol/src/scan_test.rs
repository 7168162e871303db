//! Pages: their bytes, their limits, the ends of prefixes.

use super::*;
use proptest::prelude::*;

fn request() -> PageRequest {
    PageRequest {
        lo: Bytes::from_static(b"a"),
        hi: Some(Bytes::from_static(b"c")),
        reverse: false,
        columns: Columns::All,
        rows_max: 10,
        bytes_max: 1000,
    }
}

#[test]
fn the_bytes_of_a_page_are_these() {
    let mut page = PageWriter::new(Columns::All);
    page.push(b"k", b"vv", Version(300), None);
    page.push(b"l", b"", Version(301), Some(5));
    let bytes = page.finish(Some(b"l"), true);
    let rows: [&[u8]; 2] = [
        &[1, 0, 2, 0, 0, 0, 44, 1, 0, 0, 0, 0, 0, 0, b'k', b'v', b'v'],
        &[1, 128, 0, 0, 0, 0, 45, 1, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, b'l'],
    ];
    let want = [&[1, 1, 2, 0, 0, 0, 1, 0], rows[0], rows[1], b"l"].concat();
    assert_eq!(bytes, want);
}

#[test]
fn the_end_of_a_prefix_is_right_at_its_edges() {
    for (prefix, end) in [
        (&b""[..], None),
        (b"\xff", None),
        (b"\xff\xff", None),
        (b"a", Some(&b"b"[..])),
        (b"a\xff", Some(b"b")),
        (b"a\xff\xff", Some(b"b")),
        (b"\x00", Some(b"\x01")),
        (b"a\xfe", Some(b"a\xff")),
    ] {
        assert_eq!(prefix_end(prefix).as_deref(), end, "{prefix:?}");
    }
}

#[test]
fn limits_name_themselves_and_the_size() {
    assert_eq!(request().check(), Ok(()));
    let long = |bytes: usize| Bytes::from(vec![b'k'; bytes]);
    assert_eq!(PageRequest { lo: long(KEY_BYTES_MAX + 1), ..request() }.check(), Ok(()));
    for (wrong, named) in [
        (PageRequest { rows_max: 0, ..request() }, ["1 to 65536", "0"]),
        (PageRequest { rows_max: 65_537, ..request() }, ["1 to 65536", "65537"]),
        (PageRequest { bytes_max: 0, ..request() }, ["1 to 1048576", "0"]),
        (PageRequest { bytes_max: 1 << 30, ..request() }, ["1 to 1048576", "1073741824"]),
        (PageRequest { lo: long(KEY_BYTES_MAX + 2), ..request() }, ["0 to 4097", "4098"]),
        (PageRequest { hi: Some(long(KEY_BYTES_MAX + 2)), ..request() }, ["0 to 4097", "4098"]),
    ] {
        let failure = wrong.check().unwrap_err();
        assert_eq!(failure.code, ErrorCode::OverLimit);
        named.iter().for_each(|text| assert!(failure.message.contains(text), "{}", failure.message));
    }
}

#[test]
fn a_page_is_charged_to_where_it_begins() {
    assert_eq!(request().first_key(), "a");
    assert_eq!(PageRequest { reverse: true, ..request() }.first_key(), "c");
    assert_eq!(PageRequest { reverse: true, hi: None, ..request() }.first_key(), "a");
}

#[test]
fn what_is_left_begins_behind_the_last_key() {
    let last = Bytes::from_static(b"b");
    let rest = request().after(&last);
    assert_eq!((&rest.lo[..], rest.hi.as_deref()), (&b"b\0"[..], Some(&b"c"[..])));
    let rest = PageRequest { reverse: true, ..request() }.after(&last);
    assert_eq!((&rest.lo[..], rest.hi.as_deref()), (&b"a"[..], Some(&b"b"[..])));
    assert!(request().after(&Bytes::from_static(b"c")).is_empty());
}

proptest! {
    #[test]
    fn rows_come_back_as_they_went(
        rows in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 1..20), prop::collection::vec(any::<u8>(), 0..20), any::<u64>(),
                any::<Option<u64>>()), 0..20),
        last in prop::option::of(prop::collection::vec(any::<u8>(), 1..20)),
        more: bool,
        which in 0_usize..3,
    ) {
        let columns = [Columns::All, Columns::Keys, Columns::Count][which];
        let mut writer = PageWriter::new(columns);
        for (key, value, version, remaining) in &rows {
            let before = writer.len();
            let most = writer.row_bytes(key, value);
            writer.push(key, value, Version(*version), *remaining);
            prop_assert!(writer.len() - before <= most);
        }
        let mut page = Page::decode(writer.finish(last.as_deref(), more), columns).unwrap();
        prop_assert_eq!((page.rows() as usize, page.more()), (rows.len(), more));
        prop_assert_eq!(page.last().map(|last| &last[..]), last.as_deref());
        if columns != Columns::Count {
            for (key, value, version, remaining) in rows {
                let row = page.next_row().unwrap().unwrap();
                let value = if columns == Columns::All { value } else { Vec::new() };
                prop_assert_eq!((&row.key[..], &row.value[..]), (&key[..], &value[..]));
                prop_assert_eq!((row.version, row.remaining_ms), (Version(version), remaining));
            }
        }
        prop_assert_eq!(page.next_row().unwrap(), None);
    }

    #[test]
    fn any_bytes_are_a_page_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), which in 0_usize..3) {
        let columns = [Columns::All, Columns::Keys, Columns::Count][which];
        if let Ok(mut page) = Page::decode(bytes.into(), columns) {
            while let Ok(Some(_)) = page.next_row() {}
        }
    }

    #[test]
    fn keys_of_a_prefix_and_no_others_lie_before_its_end(
        prefix in prop::collection::vec(prop::sample::select(vec![0_u8, 1, 0xfe, 0xff]), 0..4),
        key in prop::collection::vec(prop::sample::select(vec![0_u8, 1, 2, 0xfe, 0xff]), 1..6),
    ) {
        let below = prefix_end(&prefix).is_none_or(|end| key[..] < end[..]);
        prop_assert_eq!(key[..] >= prefix[..] && below, key.starts_with(&prefix));
    }
}
