//! A bucket whose requests follow the rules of a test: each rule takes the first request that it fits.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use shoal_base::SeededEntropy;
use tokio::sync::watch;

use crate::bucket::requests::{Attempt, BucketRequests, RequestFailure};
use crate::bucket::{ArchiveBucket, BucketEntry, BucketOptions, FetchedObject, VersionTag};

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It takes effect, and its answer is lost.
    AnswerLost,
    /// It waits until [`Scripted::release`], then takes effect; its sender hears nothing.
    Late,
    /// It waits until [`Scripted::release`], then takes effect and is answered.
    Held,
    /// 412 or 409, although the object does not exist.
    Conflict,
    /// No request arrives any more.
    Away,
}

/// A verb, a part of a name, and the fate of the request that they fit.
type Rule = (&'static str, String, Fate);

/// A request that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) verb: &'static str,
    pub(super) name: String,
    pub(super) bytes: Bytes,
    /// It was answered before the next one of the list arrived.
    pub(super) is_answered: bool,
}

#[derive(Default)]
struct Objects {
    objects: BTreeMap<String, (Bytes, u64)>,
    versions: u64,
}

/// One server's connection to the bucket.
#[derive(Clone)]
pub(super) struct Scripted {
    objects: Arc<Mutex<Objects>>,
    rules: Arc<Mutex<Vec<Rule>>>,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    released: watch::Sender<bool>,
}

impl Scripted {
    pub(super) fn new() -> Self {
        Self::beside(&Arc::default())
    }

    /// Another server's connection to the same bucket.
    pub(super) fn other(&self) -> Self {
        Self::beside(&self.objects)
    }

    fn beside(objects: &Arc<Mutex<Objects>>) -> Self {
        let (rules, arrivals, released) = (Arc::default(), Arc::default(), watch::Sender::new(false));
        Self { objects: Arc::clone(objects), rules, arrivals, released }
    }

    pub(super) fn bucket(&self) -> Arc<ArchiveBucket> {
        let options = BucketOptions { puts_per_second: 100_000, ..BucketOptions::default() };
        Arc::new(ArchiveBucket::over(Box::new(self.clone()), options, Arc::new(SeededEntropy::new(5))))
    }

    /// The next request with this verb, whose name contains `name`, has this fate.
    pub(super) fn rule(&self, verb: &'static str, name: impl Into<String>, fate: Fate) {
        self.released.send_replace(false);
        self.rules.lock().push((verb, name.into(), fate));
    }

    /// Late and held requests take effect.
    pub(super) fn release(&self) {
        self.released.send_replace(true);
    }

    pub(super) fn forget_rules(&self) {
        self.rules.lock().clear();
    }

    pub(super) fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().clone()
    }

    pub(super) fn contents(&self) -> BTreeMap<String, Bytes> {
        self.objects.lock().objects.iter().map(|(name, (bytes, _))| (name.clone(), bytes.clone())).collect()
    }

    pub(super) fn put(&self, name: &str, bytes: Bytes) -> VersionTag {
        self.objects.lock().put(name, bytes)
    }

    /// A request with its fate; `apply` is its effect.
    async fn request<T: Send + 'static>(
        &self,
        verb: &'static str,
        name: &str,
        bytes: Bytes,
        apply: impl FnOnce(&mut Objects) -> Result<T, RequestFailure> + Send + 'static,
    ) -> Result<T, RequestFailure> {
        let at = {
            let mut arrivals = self.arrivals.lock();
            arrivals.push(Arrival { verb, name: name.to_owned(), bytes, is_answered: false });
            arrivals.len() - 1
        };
        let fate = {
            let mut rules = self.rules.lock();
            let found = rules.iter().position(|(of, part, _)| *of == verb && name.contains(part.as_str()));
            found.map(|found| match rules[found].2 {
                Fate::Away => Fate::Away,
                _ => rules.remove(found).2,
            })
        };
        let lost = || Err(RequestFailure::Unknown("no answer".to_owned()));
        let mut released = self.released.subscribe();
        let done = match fate {
            Some(Fate::Conflict) => return Err(RequestFailure::Conflict),
            Some(Fate::Away) => return lost(),
            Some(Fate::AnswerLost) => {
                let _ = apply(&mut self.objects.lock());
                return lost();
            }
            Some(Fate::Late) => {
                let objects = Arc::clone(&self.objects);
                tokio::spawn(async move {
                    let _ = released.wait_for(|released| *released).await;
                    let _ = apply(&mut objects.lock());
                });
                return lost();
            }
            Some(Fate::Held) => {
                let _ = released.wait_for(|released| *released).await;
                apply(&mut self.objects.lock())
            }
            None => apply(&mut self.objects.lock()),
        };
        self.arrivals.lock()[at].is_answered = true;
        done
    }
}

impl Objects {
    fn put(&mut self, name: &str, bytes: Bytes) -> VersionTag {
        self.versions += 1;
        self.objects.insert(name.to_owned(), (bytes, self.versions));
        tag(self.versions)
    }
}

fn tag(version: u64) -> VersionTag {
    VersionTag { etag: Some(version.to_string()), generation: None }
}

impl BucketRequests for Scripted {
    fn create(&self, name: &str, bytes: Bytes) -> Attempt<'_, ()> {
        let name = name.to_owned();
        async move {
            let (key, stored) = (name.clone(), bytes.clone());
            let apply = move |objects: &mut Objects| match objects.objects.contains_key(&key) {
                true => Err(RequestFailure::Conflict),
                false => {
                    objects.put(&key, stored);
                    Ok(())
                }
            };
            self.request("create", &name, bytes, apply).await
        }
        .boxed()
    }

    fn replace(&self, name: &str, bytes: Bytes, version: &VersionTag) -> Attempt<'_, VersionTag> {
        let (name, version) = (name.to_owned(), version.clone());
        async move {
            let (key, stored) = (name.clone(), bytes.clone());
            let apply = move |objects: &mut Objects| match objects.objects.get(&key) {
                Some((_, found)) if tag(*found) == version => Ok(objects.put(&key, stored)),
                Some(_) => Err(RequestFailure::Conflict),
                None => Err(RequestFailure::NotFound),
            };
            self.request("replace", &name, bytes, apply).await
        }
        .boxed()
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Attempt<'_, FetchedObject> {
        let name = name.to_owned();
        async move {
            let key = name.clone();
            let apply = move |objects: &mut Objects| {
                let (bytes, version) = objects.objects.get(&key).ok_or(RequestFailure::NotFound)?;
                let object_bytes = bytes.len() as u64;
                let range = range.unwrap_or(0..object_bytes);
                let bytes = bytes.slice(range.start as usize..(range.end.min(object_bytes)) as usize);
                Ok(FetchedObject { bytes, object_bytes, tag: tag(*version) })
            };
            self.request("get", &name, Bytes::new(), apply).await
        }
        .boxed()
    }

    fn delete(&self, name: &str) -> Attempt<'_, ()> {
        let name = name.to_owned();
        async move {
            let key = name.clone();
            let apply = move |objects: &mut Objects| {
                objects.objects.remove(&key);
                Ok(())
            };
            self.request("delete", &name, Bytes::new(), apply).await
        }
        .boxed()
    }

    fn list<'a>(&'a self, prefix: &str, _: &'a mut (dyn FnMut(BucketEntry) + Send)) -> Attempt<'a, ()> {
        // Only the probe at the creation of a record lists.
        let why = format!("the test lists {prefix}");
        async { Err(RequestFailure::Refused(why)) }.boxed()
    }
}
