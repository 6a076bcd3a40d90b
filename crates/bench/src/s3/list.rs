//! Lists of a bucket's keys, page by page.

use anyhow::Result;
use shoal_s3::text::percent_encode;

use super::load::S3Client;
use super::sign::{S3Request, UNSIGNED};

/// The prefix of the keys that are listed.
pub(super) const LISTED: &str = "list/";
/// Keys with a common prefix.
pub(super) const FOLDER_KEYS: u64 = 100;

/// The key of a listed object.
pub(super) fn listed_key(number: u64) -> String {
    format!("{LISTED}{:08}/{number:010}", number / FOLDER_KEYS)
}

/// Lists all of them, by pages of `page_keys` with ListObjectsV2. Returns the number of keys, or by folders that of their prefixes.
///
/// # Errors
/// The connection failed, or the list is refused.
pub(super) fn list(client: &mut S3Client, bucket: &str, page_keys: usize, by_folders: bool) -> Result<u64> {
    let (mut found, mut token) = (0, None);
    let path = format!("/{bucket}");
    loop {
        let query = query_of(token.as_deref(), page_keys, by_folders);
        let request =
            S3Request { method: "GET", path: &path, query: &query, headers: &[], payload: UNSIGNED };
        client.expect(&request, b"", 200)?;
        let page = String::from_utf8_lossy(&client.body);
        found += page.matches(if by_folders { "<CommonPrefixes>" } else { "<Key>" }).count() as u64;
        token = next_token(&page);
        if token.is_none() {
            client.row.keys += found;
            return Ok(found);
        }
    }
}

/// The query of a page, sorted.
fn query_of(token: Option<&str>, page_keys: usize, by_folders: bool) -> String {
    let mut query = String::new();
    if let Some(token) = token {
        query += "continuation-token=";
        percent_encode(&mut query, token.as_bytes());
        query.push('&');
    }
    if by_folders {
        query += "delimiter=%2F&";
    }
    query += &format!("list-type=2&max-keys={page_keys}&prefix=");
    percent_encode(&mut query, LISTED.as_bytes());
    query
}

fn next_token(page: &str) -> Option<String> {
    let (_, rest) = page.split_once("<NextContinuationToken>")?;
    Some(rest.split_once('<')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_sorted_and_a_token_is_taken_from_the_page_before() {
        assert_eq!(query_of(None, 7, false), "list-type=2&max-keys=7&prefix=list%2F");
        let page = "<A/><NextContinuationToken>a+/=</NextContinuationToken>";
        let query = query_of(next_token(page).as_deref(), 1_000, true);
        let expected = "continuation-token=a%2B%2F%3D&delimiter=%2F&list-type=2&max-keys=1000&prefix=list%2F";
        assert_eq!(query, expected);
        assert_eq!(next_token("<IsTruncated>false</IsTruncated>"), None);
    }
}
