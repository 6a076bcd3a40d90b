//! Moments as S3 writes and reads them: HTTP dates, ISO 8601 with and without separators.
//!
//! A moment is a number of seconds or nanoseconds since the Unix epoch, UTC, between the years 1970 and 9999.

use std::time::{Duration, UNIX_EPOCH};

/// Nanoseconds of a second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// Seconds of a day.
pub const DAY_S: u64 = 86_400;

/// The last second of the year 9999.
const LAST_S: u64 = 253_402_300_799;

/// A moment as its calendar fields.
struct Fields {
    year: u64,
    month: u64,
    day: u64,
    second_of_day: u64,
}

impl Fields {
    /// The proleptic Gregorian calendar, counted in eras of 400 years that start in March.
    fn of(seconds: u64) -> Self {
        let seconds = seconds.min(LAST_S);
        let days = seconds / DAY_S + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        Self {
            year: era * 400 + year_of_era + u64::from(month <= 2),
            month,
            day,
            second_of_day: seconds % DAY_S,
        }
    }

    /// The inverse of [`Self::of`]; `None` for a date that does not exist.
    fn seconds(&self) -> Option<u64> {
        let is_in_range = (1970..=9999).contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=31).contains(&self.day)
            && self.second_of_day < DAY_S;
        if !is_in_range {
            return None;
        }
        let year = self.year - u64::from(self.month <= 2);
        let march_month = if self.month > 2 { self.month - 3 } else { self.month + 9 };
        let of_year = (153 * march_month + 2) / 5 + self.day - 1;
        let days = year * 365 + year / 4 - year / 100 + year / 400 + of_year - 719_468;
        let seconds = days * DAY_S + self.second_of_day;
        // A day after the last one of its month would be one of the next month.
        let back = Self::of(seconds);
        (back.month == self.month && back.day == self.day).then_some(seconds)
    }

    fn clock(&self) -> (u64, u64, u64) {
        (self.second_of_day / 3_600, self.second_of_day / 60 % 60, self.second_of_day % 60)
    }
}

/// `2013-05-24T00:00:00.000Z`, as in XML answers.
#[must_use]
pub fn iso_of(ns: u64) -> String {
    let fields = Fields::of(ns / SECOND_NS);
    let (hour, minute, second) = fields.clock();
    let millis = ns % SECOND_NS / 1_000_000;
    let Fields { year, month, day, .. } = fields;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// `20130524T000000Z`, as in signatures.
#[must_use]
pub fn basic_of(seconds: u64) -> String {
    let fields = Fields::of(seconds);
    let (hour, minute, second) = fields.clock();
    let Fields { year, month, day, .. } = fields;
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// `Fri, 24 May 2013 00:00:00 GMT`, as in HTTP headers.
#[must_use]
pub fn http_date_of(seconds: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_S)))
}

/// The seconds of an HTTP date in any of its three forms. The zone may be `-0000` or `+0000` instead of `GMT` (RFC 5322): boto3
/// signs such a `Date` if its caller sets the header.
#[must_use]
pub fn parse_http_date(text: &str) -> Option<u64> {
    let numeric = text.strip_suffix(" -0000").or_else(|| text.strip_suffix(" +0000"));
    let in_gmt = numeric.map(|date| format!("{date} GMT"));
    let moment = httpdate::parse_http_date(in_gmt.as_deref().unwrap_or(text)).ok()?;
    moment.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// The seconds of `20130524T000000Z`.
#[must_use]
pub fn parse_basic(text: &str) -> Option<u64> {
    parse(text, "yyyymmddThhmmssZ")
}

/// The seconds of `2013-05-24T00:00:00Z`, with or without a fraction, or of the date alone.
#[must_use]
pub fn parse_iso(text: &str) -> Option<u64> {
    if text.len() == 10 {
        return parse(text, "yyyy-mm-dd");
    }
    let whole = text.get(..19)?;
    let rest = text.get(19..)?.strip_suffix('Z')?;
    let is_fraction =
        |rest: &str| (1..=9).contains(&rest.len()) && rest.bytes().all(|it| it.is_ascii_digit());
    let fits = rest.is_empty() || rest.strip_prefix('.').is_some_and(is_fraction);
    if fits { parse(whole, "yyyy-mm-ddThh:mm:ss") } else { None }
}

/// Reads `text` by `form`: digits for lower-case letters, everything else as it is. The letters come in the order year,
/// month, day, hour, minute, second.
fn parse(text: &str, form: &str) -> Option<u64> {
    if text.len() != form.len() {
        return None;
    }
    let mut digits = Vec::with_capacity(14);
    for (byte, form) in text.bytes().zip(form.bytes()) {
        match form.is_ascii_lowercase() {
            true if byte.is_ascii_digit() => digits.push(byte),
            false if byte == form => {}
            _ => return None,
        }
    }
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = digits.get(from..to).unwrap_or(b"0");
        str::from_utf8(digits).ok()?.parse().ok()
    };
    let (hour, minute, second) = (number(8, 10)?, number(10, 12)?, number(12, 14)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let second_of_day = hour * 3_600 + minute * 60 + second;
    Fields { year: number(0, 4)?, month: number(4, 6)?, day: number(6, 8)?, second_of_day }.seconds()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAY_24: u64 = 1_369_353_600;

    #[test]
    fn a_moment_in_each_form() {
        assert_eq!(iso_of(MAY_24 * SECOND_NS + 7_000_000), "2013-05-24T00:00:00.007Z");
        assert_eq!(basic_of(MAY_24 + 3_661), "20130524T010101Z");
        assert_eq!(http_date_of(MAY_24), "Fri, 24 May 2013 00:00:00 GMT");
        for text in ["2013-05-24T00:00:00Z", "2013-05-24T00:00:00.123Z", "2013-05-24"] {
            assert_eq!(parse_iso(text), Some(MAY_24), "{text}");
        }
        assert_eq!(parse_basic("20130524T000000Z"), Some(MAY_24));
        for text in [
            "Fri, 24 May 2013 00:00:00 GMT",
            "Friday, 24-May-13 00:00:00 GMT",
            "Fri May 24 00:00:00 2013",
            "Fri, 24 May 2013 00:00:00 -0000",
            "Fri, 24 May 2013 00:00:00 +0000",
        ] {
            assert_eq!(parse_http_date(text), Some(MAY_24), "{text}");
        }
        assert_eq!(iso_of(u64::MAX), "2554-07-21T23:34:33.709Z");
        assert_eq!(basic_of(u64::MAX), "99991231T235959Z");
    }

    #[test]
    fn dates_that_do_not_exist_are_refused() {
        for text in [
            "20130230T000000Z",
            "20130524T240000Z",
            "20131301T000000Z",
            "20130524t000000Z",
            "19691231T235959Z",
        ] {
            assert_eq!(parse_basic(text), None, "{text}");
        }
        for text in
            ["2013-05-24 00:00:00+00:00", "2013-05-24T00:00:00", "2013-05-24T00:00:00.Z", "2013-5-24", "é"]
        {
            assert_eq!(parse_iso(text), None, "{text}");
            assert_eq!(parse_http_date(text), None, "{text}");
        }
        assert_eq!(parse_basic("20240229T000000Z"), Some(1_709_164_800));
    }

    proptest! {
        #[test]
        fn moments_round_trip(seconds in 0..=LAST_S) {
            prop_assert_eq!(parse_basic(&basic_of(seconds)), Some(seconds));
            prop_assert_eq!(parse_http_date(&http_date_of(seconds)), Some(seconds));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = (parse_iso(&text), parse_basic(&text), parse_http_date(&text));
        }
    }
}
