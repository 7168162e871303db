//! When a certificate ends: reads `notAfter` out of its DER (RFC 5280 section 4.1). Checks nothing else: whether a
//! certificate can be used is for [`super::tls`].

/// When certificates end, seconds since the Unix epoch; 0 where it could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CertificateEnds {
    /// The node's own.
    pub node: u64,
    /// The cluster's authority.
    pub authority: u64,
}

/// `notAfter`, seconds since the Unix epoch; `None` for what is no certificate or ends before 1970.
pub fn not_after(certificate: &[u8]) -> Option<u64> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut fields, _) = element(certificate)?;
    // [0] version (optional), serialNumber, signature, issuer; then validity.
    if fields.first() == Some(&CONTEXT_0) {
        fields = element(fields)?.2;
    }
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (_, validity, _) = element(fields)?;
    let (_, _, rest) = element(validity)?;
    let (tag, text, _) = element(rest)?;
    time(tag, text)
}

const CONTEXT_0: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// One element: tag, content, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, first, rest @ ..] = bytes else { return None };
    let (length, rest) = match *first {
        short @ 0..=0x7f => (usize::from(short), rest),
        0x80 => return None,
        long @ 0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// `YYMMDDHHMMSSZ` (before 50: 20YY) or `YYYYMMDDHHMMSSZ`.
fn time(tag: u8, text: &[u8]) -> Option<u64> {
    let digits = text.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |bytes: &[u8]| bytes.iter().fold(0_i64, |number, digit| number * 10 + i64::from(digit - b'0'));
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(&digits[..2]);
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(&rest[at..at + 2]));
    let days = days_since_epoch(year, month, day);
    u64::try_from(((days * 24 + hour) * 60 + minute) * 60 + second).ok()
}

/// Days from 1970-01-01 to a day of the Gregorian calendar: whole years end with February, so that leap days come last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn ends(year: i32, month: u8, day: u8) -> Option<u64> {
        let mut params = CertificateParams::new(vec!["x".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, month, day);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        not_after(certificate.der())
    }

    #[test]
    fn both_forms_of_time_and_leap_days_are_read() {
        assert_eq!(ends(1970, 1, 1), Some(0));
        assert_eq!(ends(2000, 3, 1), Some(951_868_800));
        assert_eq!(ends(2024, 2, 29), Some(1_709_164_800));
        assert_eq!(ends(2036, 1, 1), Some(2_082_758_400));
        assert_eq!(ends(2100, 1, 1), Some(4_102_444_800));
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let params = CertificateParams::new(vec!["x".to_owned()]).unwrap();
        let whole = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        for length in 0..whole.der().len() {
            assert_eq!(not_after(&whole.der()[..length]), None, "{length} bytes");
        }
        assert_eq!(not_after(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
