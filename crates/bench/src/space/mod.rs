//! `bench space`: the store's disk-space allocator beside the seed's and others, on the seed's loads and on harder ones.

mod allocator;
mod hybrid;
mod reference;
