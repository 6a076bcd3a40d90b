//! The benchmark against the frontend itself, which refuses wrong signatures and checksums. No figure is judged.

use shoal_frontend::access::KeyFile;
use shoal_frontend::{Credentials, Security, Tokens};
use shoal_http::Capacity;
use shoal_s3::{S3Options, S3Server};
use shoal_storekit::StoreKit;
use tokio::runtime::Runtime;

use super::*;

fn options(endpoint: S3Endpoint) -> S3BenchOptions {
    S3BenchOptions {
        version: "test".into(),
        json: true,
        cases: Vec::new(),
        variants: Vec::new(),
        endpoint,
        process: Some(std::process::id()),
        bucket: "measured".into(),
        sizes: vec![0, 4 << 10, 70_000],
        connections: 3,
        time: Duration::ZERO,
        objects: 20,
        listed: 2_150,
        filled: false,
        keep: false,
    }
}

/// A server, and a client's key that may do everything.
fn start(runtime: &Runtime) -> (String, (String, String)) {
    let mut file = KeyFile::default();
    let entry = file.create(None, vec!["all *".to_owned()], 0, None).unwrap();
    let key = (entry.id.clone(), entry.secret.clone().unwrap());
    let credentials = Credentials::with_keys(None, Tokens::default(), Some(file.keys().unwrap())).unwrap();
    let options = S3Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        security: Security::new(credentials),
        ..S3Options::default()
    };
    let capacity = Capacity::new(&options.limits);
    let store = StoreKit::new(128 << 10).in_memory();
    let _in_runtime = runtime.enter();
    let server = S3Server::bind(options).unwrap();
    let url = format!("http://{}", server.addresses()[0]);
    runtime.spawn(server.run(store, capacity, std::future::pending()));
    (url, key)
}

#[test]
fn every_case_gives_figures_and_no_key_stays() {
    let runtime = Runtime::new().unwrap();
    let (url, (id, secret)) = start(&runtime);
    let endpoint = |secret: &str| S3Endpoint::new(&url, "us-east-1", &id, secret).unwrap();
    let mut out = Vec::new();
    run(&options(endpoint(&secret)), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let mut rows = vec![("list".to_owned(), "unsigned"), ("list-folders".to_owned(), "unsigned")];
    for size in ["0", "4k", "70000b"] {
        rows.extend(["unsigned", "signed", "crc32"].map(|variant| (format!("put-{size}"), variant)));
        rows.push((format!("get-{size}"), "unsigned"));
    }
    for (case, variant) in rows {
        for metric in ["ops_per_s", "p999_us", "first_byte_p99_us", "server_cpu_us", "server_resident_mib"] {
            let has = |line: &str| {
                line.contains(&format!("\"case\":\"{case}\""))
                    && line.contains(variant)
                    && line.contains(metric)
            };
            assert!(text.lines().any(has), "{case} {variant} {metric}: {text}");
        }
    }
    let address = url.strip_prefix("http://").unwrap().parse().unwrap();
    let server = MeasuredServer { address, endpoint: endpoint(&secret), process: None };
    assert!(make_bucket(&server, "measured").unwrap(), "a bucket that is not empty is not deleted");

    let filled = S3BenchOptions { keep: true, cases: vec!["get-4k".into()], ..options(endpoint(&secret)) };
    run(&filled, &mut Vec::new()).unwrap();
    let again = S3BenchOptions { filled: true, ..filled.clone() };
    run(&again, &mut Vec::new()).unwrap();
    let other = S3BenchOptions { objects: 1_000, ..again };
    let error = run(&other, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("404"), "an object is missing: {error}");
    let error = run(&options(endpoint("wrong")), &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("SignatureDoesNotMatch"), "{error}");
}

#[test]
fn impossible_options_are_named() {
    let good = options(S3Endpoint::new("http://h", "r", "i", "s").unwrap());
    good.check().unwrap();
    let error = |options: S3BenchOptions| options.check().unwrap_err();
    assert!(error(S3BenchOptions { objects: 0, ..good.clone() }).contains("--objects"));
    assert!(error(S3BenchOptions { listed: 0, ..good.clone() }).contains("--listed"));
    assert!(error(S3BenchOptions { connections: 0, ..good.clone() }).contains("--connections"));
    assert!(error(S3BenchOptions { sizes: vec![9 << 20], ..good }).contains("--value-bytes"));
}
