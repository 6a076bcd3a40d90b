//! Time to live: [`ExpiryClock`] decides whether an object has expired, and [`ClockRecord`] carries its clocks across a restart.

mod expiry;
mod record;

pub use expiry::{ExpiryClock, FoundTime, Moment, Newest, Numbered, first_record};
pub use record::{CLOCK_RECORD_BYTES, ClockRecord, WallMark};
