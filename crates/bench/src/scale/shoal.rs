//! Shoal as a target: a store in this process, on a file that grows as it fills.

use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;

use anyhow::Result;
use shoal_base::BLOCK_BYTES_U64;
use shoal_buffer::Buffer;
use shoal_device::{Device, FileOptions, IoMode};
use shoal_engine::{
    ByteRange, Environment, Error, FormatOptions, ObjectKey, OpenOptions, PutOptions, RejectRules, Store,
    Ticket, Write, WriteBatch, block_on,
};

use super::climb::Target;
use super::load::{Batch, Put};

/// The bucket of the objects.
pub(super) const BUCKET: &str = "bench";

/// A store, and the way to put into it: all puts of a batch are queued before one of them is waited for, so that they share a
/// flush.
pub struct Shoal {
    store: Store,
}

impl Shoal {
    /// Creates a store that may grow to `size` bytes on `device`, and opens it with `cache` bytes of cache.
    ///
    /// # Errors
    /// Those of the store.
    pub fn create(device: Device, size: u64, cache: u64) -> Result<Self> {
        let layout = FormatOptions::for_blocks(size / BLOCK_BYTES_U64);
        block_on(Store::format(&device, &layout, &Environment::default()))?;
        Self::open(device, cache)
    }

    /// Opens the store on `device`.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open(device: Device, cache: u64) -> Result<Self> {
        let mut options = OpenOptions { cache_bytes: usize::try_from(cache)?, ..OpenOptions::default() };
        // Its reads would be mixed with those of the gets.
        options.tuning.scrub_bytes_per_s = 0;
        Ok(Self { store: block_on(Store::open(device, options, Environment::default()))? })
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns true if there is an object with this key; its value is read.
    ///
    /// # Errors
    /// Those of the store.
    pub fn get(&self, key: &[u8]) -> Result<bool> {
        let key = ObjectKey::new(BUCKET, key)?;
        let found = block_on(self.store.get(&key, ByteRange::ALL))?;
        Ok(found.is_some_and(|object| object.value.len() as u64 == object.info.bytes))
    }

    /// Deletes these objects; durable when it returns.
    ///
    /// # Errors
    /// Those of the store.
    pub fn delete(&self, keys: &[Vec<u8>]) -> Result<()> {
        block_on(async {
            let mut waiting = Vec::with_capacity(keys.len());
            for key in keys {
                let key = ObjectKey::new(BUCKET, key)?;
                waiting.push(self.store.write(Write::delete(&key, RejectRules::default())).await?);
            }
            for ticket in waiting {
                ticket.durable().await?;
            }
            Ok(())
        })
    }

    /// Closes it in order.
    ///
    /// # Errors
    /// Those of the store.
    pub fn close(self) -> Result<()> {
        Ok(block_on(self.store.close())?)
    }
}

/// Opens the file at `path`, which holds a store.
///
/// # Errors
/// Those of the device.
pub(super) fn device(path: &Path, io: IoMode) -> Result<Device> {
    Ok(shoal_device::open(path, &FileOptions { io, ..FileOptions::default() })?)
}

impl Target for Shoal {
    fn put(&mut self, batch: &Batch) -> Result<()> {
        block_on(put_all(&self.store, batch))
    }
}

async fn put_all(store: &Store, batch: &Batch) -> Result<()> {
    let mut puts = Vec::with_capacity(batch.puts.len());
    for Put { key, value } in &batch.puts {
        puts.push((ObjectKey::new(BUCKET, key)?, Buffer::from(value.clone())));
    }
    let mut waiting = Vec::new();
    if batch.if_absent {
        let mut begin = pin!(begin_absent(store, &puts, &mut waiting));
        poll_fn(|context| store.gather(|| begin.as_mut().poll(context))).await?;
    } else {
        begin_together(store, &puts, &mut waiting).await?;
    }
    for ticket in waiting {
        ticket.durable().await?;
    }
    Ok(())
}

/// Queues puts as one write batch, or in the fewest batches that the log takes.
async fn begin_together(
    store: &Store,
    puts: &[(ObjectKey, Buffer)],
    waiting: &mut Vec<Ticket>,
) -> Result<()> {
    let options = PutOptions::default();
    let (mut at, mut at_a_time) = (0, puts.len());
    while at < puts.len() {
        let some = &puts[at..puts.len().min(at + at_a_time)];
        let writes: WriteBatch<'_> =
            some.iter().map(|(key, value)| Write::put(key, value, &options)).collect();
        match store.write(writes).await {
            Ok(ticket) => {
                waiting.push(ticket);
                at += some.len();
            }
            // Too many for the current length of the log.
            Err(Error::Invalid(_)) if some.len() > 1 => at_a_time = some.len().div_ceil(2),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Queues the puts of missing objects, one by one.
async fn begin_absent(store: &Store, puts: &[(ObjectKey, Buffer)], waiting: &mut Vec<Ticket>) -> Result<()> {
    let rules = RejectRules { if_exists: true, ..RejectRules::default() };
    let options = PutOptions { rules, ..PutOptions::default() };
    for (key, value) in puts {
        match store.write(Write::put(key, value, &options)).await {
            Ok(ticket) => waiting.push(ticket),
            // A duplicate: the object exists.
            Err(Error::ConditionFailed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_device::MemDevice;

    use super::*;
    use crate::scale::load::{Load, ORDERS};

    #[test]
    fn batches_of_all_orders_and_sizes_are_stored() {
        for (order, value_bytes) in ORDERS.into_iter().flat_map(|order| [(order, 100), (order, 20_000)]) {
            let device = Device::new(Arc::new(MemDevice::new(32_768)));
            let mut shoal = Shoal::create(device, 128 << 20, 16 << 20).unwrap();
            let mut load = Load::new(order, value_bytes, 400, 0);
            let mut puts = Vec::new();
            for _ in 0..4 {
                let batch = load.batch(100);
                shoal.put(&batch).unwrap();
                puts.extend(batch.puts);
            }
            for put in puts {
                let key = ObjectKey::new(BUCKET, &put.key).unwrap();
                let object = block_on(shoal.store().get(&key, ByteRange::ALL)).unwrap().unwrap();
                assert_eq!(object.value.to_vec(), put.value, "{order}");
            }
            shoal.close().unwrap();
        }
    }
}
