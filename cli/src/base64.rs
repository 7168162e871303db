//! Base64 with padding (RFC 4648, section 4), for bytes that are no text.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of bytes.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let part = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = part(0) << 16 | part(1) << 8 | part(2);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit <= chunk.len() { char::from(DIGITS[index as usize]) } else { '=' });
        }
    }
    text
}

/// The bytes of a text; `None` if it is not what [`encode`] writes.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
    let last = digits.len().saturating_sub(4);
    for (at, chunk) in digits.chunks(4).enumerate().map(|(index, chunk)| (index * 4, chunk)) {
        let pads = chunk.iter().rev().take_while(|digit| **digit == b'=').count();
        if pads > 2 || (pads > 0 && at != last) {
            return None;
        }
        let mut bits = 0;
        for digit in &chunk[..4 - pads] {
            bits = bits << 6 | value(*digit)?;
        }
        bits <<= 6 * pads;
        let whole = [(bits >> 16) as u8, (bits >> 8) as u8, bits as u8];
        // Bits that stand for no byte are 0, so that each text stands for one thing only.
        if whole[3 - pads..].iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(&whole[..3 - pads]);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_rfc() {
        // RFC 4648, section 10.
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
    }

    #[test]
    fn every_byte_comes_back_and_other_texts_are_refused() {
        let all: Vec<u8> = (0..=255).rev().chain(0..=255).collect();
        for length in 0..all.len() {
            assert_eq!(decode(&encode(&all[..length])).as_deref(), Some(&all[..length]));
        }
        for text in ["Z", "Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zh==", "Zm9=", "Zm 8", "Zm8\u{e9}"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
