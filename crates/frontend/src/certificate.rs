//! The name in a peer's certificate, and the end of its validity. TLS checks the validity when a connection is opened;
//! connections may outlive it.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use shoal_base::{Clock, SystemClock};

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

const DAY_S: u64 = 86_400;

/// The name of the peer of `certificate`, which TLS has verified: its first DNS name, else a description.
#[must_use]
pub fn name_of(certificate: &CertificateDer<'_>) -> Arc<str> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok();
    let name = parsed.as_ref().and_then(|parsed| parsed.valid_dns_names().next());
    name.unwrap_or("a client certificate without a DNS name").into()
}

/// The time for which all of `chain` stay valid; `None` if no certificate has an end of validity in a known format.
#[must_use]
pub fn rest_of_life(chain: &[CertificateDer<'_>]) -> Option<Duration> {
    let ends_s = end_s(chain)?;
    let now = Duration::from_nanos(SystemClock::default().wall_ns());
    Some(Duration::from_secs(ends_s).saturating_sub(now))
}

/// The second of the Unix epoch up to which all of `chain` are valid; `None` if no certificate has an end of validity in a known format.
#[must_use]
pub(crate) fn end_s(chain: &[CertificateDer<'_>]) -> Option<u64> {
    chain.iter().filter_map(|certificate| not_after_s(certificate)).min()
}

/// The second of the Unix epoch up to which `certificate` is valid.
fn not_after_s(certificate: &[u8]) -> Option<u64> {
    let mut certificate = within(certificate, SEQUENCE)?;
    let mut signed = take(&mut certificate, SEQUENCE)?;
    if signed.first() == Some(&VERSION) {
        element(&mut signed)?;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        element(&mut signed)?;
    }
    let mut validity = take(&mut signed, SEQUENCE)?;
    element(&mut validity)?;
    let (tag, text) = element(&mut validity)?;
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<u64>().ok();
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year = number(year)?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (number(year)?, rest)
        }
        _ => return None,
    };
    // Certificates have seconds, and no other zone.
    let digits = rest.strip_suffix(b"Z").filter(|digits| digits.len() == 10)?;
    let mut pairs = digits.chunks(2).map(number);
    let mut next = || pairs.next().flatten();
    let (month, day, hour, minute, second) = (next()?, next()?, next()?, next()?, next()?);
    let is_time =
        (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    let seconds = days_before(year, month, day)? * DAY_S + hour * 3_600 + minute * 60 + second;
    is_time.then_some(seconds)
}

/// Days from the start of 1970 to a day; `None` for earlier days. Years start in March here, so that the leap day is the last
/// day of a year.
fn days_before(year: u64, month: u64, day: u64) -> Option<u64> {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day;
    // The same count at the start of 1970.
    days.checked_sub(719_469)
}

/// The content of the only element.
fn within(mut bytes: &[u8], tag: u8) -> Option<&[u8]> {
    take(&mut bytes, tag)
}

/// The content of the next element, which has this tag.
fn take<'a>(bytes: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    element(bytes).filter(|(found, _)| *found == tag).map(|(_, content)| content)
}

/// The next element: its tag and content.
fn element<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&[tag, first], mut rest) = bytes.split_first_chunk::<2>()?;
    let length = match first {
        0..=0x7f => usize::from(first),
        0x81..=0x83 => {
            let (digits, behind) = rest.split_at_checked(usize::from(first & 0x7f))?;
            rest = behind;
            digits.iter().fold(0, |length, &digit| (length << 8) | usize::from(digit))
        }
        _ => return None,
    };
    let (content, behind) = rest.split_at_checked(length)?;
    *bytes = behind;
    Some((tag, content))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(ends_s: u64) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["a.example".into()]).unwrap();
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(ends_s);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn the_end_is_read() {
        // Both forms of time, leap years, the last days of months and years.
        for ends_s in [
            1_709_164_800,
            1_709_251_199,
            1_709_251_200,
            2_524_607_999,
            2_524_608_000,
            4_102_444_799,
            95_617_584_000,
        ] {
            assert_eq!(not_after_s(&certificate(ends_s)), Some(ends_s), "{ends_s}");
        }
    }

    #[test]
    fn the_first_of_a_chain_that_ends_counts() {
        let now_s = SystemClock::default().wall_ns() / 1_000_000_000;
        let chain = [certificate(now_s + 50_000), certificate(now_s + 10_000)];
        let rest = rest_of_life(&chain).unwrap();
        assert!((9_000..=10_000).contains(&rest.as_secs()), "{rest:?}");
        assert_eq!(rest_of_life(&[certificate(now_s - 10)]), Some(Duration::ZERO));
        assert_eq!(rest_of_life(&[]), None);
    }

    proptest! {
        #[test]
        fn damaged_certificate_has_no_expiry(at in 0..400_usize, byte in any::<u8>(), cut in 0..400_usize) {
            let mut damaged = certificate(1_709_164_800).to_vec();
            let at = at % damaged.len();
            damaged[at] = byte;
            damaged.truncate(damaged.len() - cut % damaged.len());
            let _ = not_after_s(&damaged);
        }
    }
}
