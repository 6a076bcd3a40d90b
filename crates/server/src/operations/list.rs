//! Lists the keys of a bucket.

use bytes::Bytes;
use prost::Message;
use shoal_api::v1;
use shoal_base::limits::KEY_BYTES_MAX;
use shoal_engine::{DamagedRange, ListPage, ListRequest, check_bucket};

use crate::auth::Authenticated;
use crate::convert;
use crate::failure::Failure;

/// The entries of one page, in bytes: with the most common prefixes of a page they stay below the longest message. A thousand entries with
/// all the metadata that is allowed would not.
const ENTRIES_BYTES_MAX: usize = 3 << 20;

pub(crate) async fn list(request: Authenticated<v1::ListRequest>) -> Result<v1::ListResponse, Failure> {
    let (message, admitted) = request.take();
    let request = list_request(message)?;
    let store = admitted.to_read(&request.bucket)?;
    let page = store.list(&request).await.map_err(|error| Failure::of(&error))?;
    Ok(response(page, ENTRIES_BYTES_MAX))
}

fn list_request(message: v1::ListRequest) -> Result<ListRequest, Failure> {
    let bucket = convert::bucket(&message.bucket);
    check_bucket(bucket).map_err(|error| Failure::of(&error))?;
    for (name, bytes) in [
        ("prefix", &message.prefix),
        ("delimiter", &message.delimiter),
        ("start_after", &message.start_after),
    ] {
        if bytes.len() > KEY_BYTES_MAX {
            let length = bytes.len();
            return Err(Failure::invalid(format!(
                "{name} has at most {KEY_BYTES_MAX} bytes; this one has {length}"
            )));
        }
    }
    Ok(ListRequest {
        bucket: bucket.to_owned(),
        prefix: message.prefix.into(),
        delimiter: message.delimiter.into(),
        start_after: message.start_after.into(),
        limit: message.page_size as usize,
    })
}

/// The page as a message, cut when its entries pass `entries_bytes_max`.
fn response(page: ListPage, entries_bytes_max: usize) -> v1::ListResponse {
    let mut bytes = 0;
    let mut entries = Vec::with_capacity(page.entries.len());
    let mut cut = None;
    // All keys share one buffer: prost clones each `Bytes` as it encodes it, and the first clone of a separate buffer allocates.
    let mut keys = Vec::with_capacity(page.entries.iter().map(|(key, _)| key.len()).sum());
    page.entries.iter().for_each(|(key, _)| keys.extend_from_slice(key));
    let mut keys = Bytes::from(keys);
    for (key, info) in page.entries {
        let entry = v1::ListEntry { key: keys.split_to(key.len()), info: Some(convert::info(&info)) };
        bytes += entry.encoded_len();
        // The first entry always fits, so that each page makes progress.
        if bytes > entries_bytes_max
            && let Some(v1::ListEntry { key, .. }) = entries.last()
        {
            cut = Some(key.clone());
            break;
        }
        entries.push(entry);
    }
    // All keys from the cut on are for the next page, prefixes too. None of them is a prefix of an entry's key, so the order of their bytes
    // is that of the listing.
    let before_cut = |prefix: &Vec<u8>| cut.as_ref().is_none_or(|cut| prefix[..] < cut[..]);
    let common_prefixes = page.common_prefixes.into_iter().filter(before_cut).map(Into::into).collect();
    let meets = |range: &DamagedRange| cut.as_ref().is_none_or(|cut| range.from[..] <= cut[..]);
    let damaged = page.damaged.into_iter().filter(meets).map(convert::damaged).collect();
    let next_start_after = cut.or_else(|| page.next.map(Into::into));
    v1::ListResponse { entries, common_prefixes, next_start_after, damaged }
}

#[cfg(test)]
mod tests {
    use shoal_api::v1::failure::Kind;
    use shoal_engine::{Lsn, Metadata, ObjectInfo, TabletId};

    use super::*;

    fn page(keys: &[&str], prefixes: &[&str], next: Option<&str>) -> ListPage {
        let info = ObjectInfo {
            version: Lsn(1),
            bytes: 1,
            modified_ns: 1,
            expiry: None,
            metadata: Metadata::default(),
        };
        ListPage {
            entries: keys.iter().map(|key| (key.as_bytes().to_vec(), info.clone())).collect(),
            common_prefixes: prefixes.iter().map(|prefix| prefix.as_bytes().to_vec()).collect(),
            next: next.map(|next| next.as_bytes().to_vec()),
            damaged: Vec::new(),
        }
    }

    fn damaged(from: &str, to: Option<&str>) -> DamagedRange {
        let to = to.map(|to| to.as_bytes().to_vec());
        DamagedRange { tablet: TabletId(3), from: from.into(), to, block: 9, why: "torn".into() }
    }

    #[test]
    fn list_page_reports_its_damaged_ranges() {
        let mut whole = page(&["a", "c", "e"], &[], None);
        whole.damaged = vec![damaged("b", Some("bb")), damaged("d", None)];
        let response_of = |bytes| response(whole.clone(), bytes).damaged;
        let all = response_of(ENTRIES_BYTES_MAX);
        assert_eq!(all.len(), 2);
        let v1::DamagedRange { tablet, from, to, block, why } = &all[0];
        assert_eq!(
            (*tablet, &from[..], to.as_deref(), *block, &why[..]),
            (3, &b"b"[..], Some(&b"bb"[..]), 9, "torn")
        );
        assert_eq!(all[1].to, None);
        let one =
            v1::ListEntry { key: "a".into(), info: Some(convert::info(&whole.entries[0].1)) }.encoded_len();
        let cut = response_of(one * 2);
        assert_eq!(cut.len(), 1, "the range behind the cut is the next page's");
    }

    #[test]
    fn fitting_page_is_not_cut() {
        let response = response(page(&["a", "c"], &["b/", "d/"], Some("d/")), ENTRIES_BYTES_MAX);
        assert_eq!((response.entries.len(), response.common_prefixes.len()), (2, 2));
        assert_eq!(response.next_start_after.as_deref(), Some(&b"d/"[..]));
    }

    #[test]
    fn page_is_cut_after_an_entry() {
        let whole = page(&["a", "c", "e"], &["b/", "d/"], None);
        let one =
            v1::ListEntry { key: "a".into(), info: Some(convert::info(&whole.entries[0].1)) }.encoded_len();
        let cut = response(whole.clone(), one * 2);
        assert_eq!(cut.entries.len(), 2);
        assert_eq!(cut.common_prefixes, ["b/"]);
        assert_eq!(cut.next_start_after.as_deref(), Some(&b"c"[..]));
        // A page has an entry even if nothing fits.
        assert_eq!(response(whole, 0).entries.len(), 1);
    }

    #[test]
    fn requests_are_checked() {
        let wrong = [
            v1::ListRequest { bucket: "A".into(), ..Default::default() },
            v1::ListRequest { prefix: vec![b'a'; 1025].into(), ..Default::default() },
        ];
        for request in wrong {
            assert_eq!(list_request(request).unwrap_err().kind(), Kind::Invalid);
        }
        let request = v1::ListRequest {
            prefix: "p".into(),
            delimiter: "/".into(),
            start_after: "s".into(),
            ..Default::default()
        };
        let request = list_request(request).unwrap();
        assert_eq!((request.bucket.as_str(), request.limit), ("default", 0));
        assert_eq!([&request.prefix[..], &request.delimiter, &request.start_after], [b"p", b"/", b"s"]);
    }
}
