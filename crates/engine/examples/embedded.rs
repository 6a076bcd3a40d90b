//! The store in a program of its own: put, get, batch, list, snapshot; blocking and asynchronous.
//! `cargo run -p shoal-engine --example embedded -- notes.data`

use std::path::Path;

use shoal_engine::{
    Buffer, ByteRange, Error, ListRequest, ObjectKey, PathOptions, PutOptions, RejectRules, Result,
    SnapshotPlace, Store, Write, WriteBatch, block_on,
};

/// Blocking: each call does its work on this thread, and returns when it is done; a write then is on the device.
pub(crate) fn blocking(path: &Path, options: PathOptions) -> Result<()> {
    let store = block_on(Store::open_path(path, options))?;
    let key = ObjectKey::new("default", b"notes/today")?;
    let put = block_on(store.put(&key, b"buy milk".to_vec().into(), PutOptions::default()))?;
    let object = block_on(store.get(&key, ByteRange::ALL))?.expect("it was just put");
    assert_eq!((object.value.to_vec(), object.info.version), (b"buy milk".to_vec(), put.version));
    block_on(store.delete(&key, RejectRules::default()))?;
    block_on(store.close())?;
    Ok(())
}

/// Asynchronous, under any runtime: many calls may be under way on one thread, and their writes share a flush.
pub(crate) async fn asynchronous(path: &Path, options: PathOptions) -> Result<Vec<String>> {
    let store = Store::open_path(path, options).await?;
    put_both(&store, [("notes/a", "one"), ("notes/b", "two")]).await?;
    let before = store.snapshot().await?;
    put_both(&store, [("notes/b", "three"), ("notes/c", "four")]).await?;

    // A listing of what there is now, a page at a time.
    let mut request =
        ListRequest { bucket: "default".into(), prefix: b"notes/".to_vec(), limit: 2, ..Default::default() };
    let mut listed = Vec::new();
    loop {
        let page = store.list(&request).await?;
        listed.extend(page.entries.iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()));
        let Some(next) = page.next else { break };
        request.start_after = next;
    }

    // The snapshot still has what there was then: get, list, and all objects of all buckets.
    let key = ObjectKey::new("default", b"notes/b")?;
    let then = before.get(&key, ByteRange::ALL).await?.expect("it was there");
    assert_eq!(then.value.to_vec(), b"two");
    let mut place = Some(SnapshotPlace::default());
    let mut objects = 0;
    while let Some(from) = place {
        let page = before.objects(&from, 1000).await?;
        objects += page.objects.len();
        place = page.next;
    }
    assert_eq!(objects, 2);
    drop(before);
    store.close().await?;
    Ok(listed)
}

/// A batch: both objects are stored, or, after a crash, neither; no other write comes between.
async fn put_both(store: &Store, objects: [(&str, &'static str); 2]) -> Result<()> {
    let put = |(key, value): (&str, &'static str)| {
        Ok((ObjectKey::new("default", key.as_bytes())?, value.as_bytes().into()))
    };
    let puts = objects.into_iter().map(put).collect::<Result<Vec<(ObjectKey, Buffer)>>>()?;
    let options = PutOptions::default();
    let batch: WriteBatch<'_> = puts.iter().map(|(key, value)| Write::put(key, value, &options)).collect();
    store.write(batch).await?.durable().await?;
    Ok(())
}

#[allow(dead_code)] // The tests call the two functions themselves.
fn main() -> Result<()> {
    let Some(path) = std::env::args_os().nth(1) else {
        return Err(Error::Invalid("give the path of a data file; it is made if it is not there".into()));
    };
    let path = Path::new(&path);
    blocking(path, PathOptions::default())?;
    for key in block_on(asynchronous(path, PathOptions::default()))? {
        println!("{key}");
    }
    Ok(())
}
