//! What a request asks for and how it ends, in words that both frontends share. Each list is short and closed: it bounds how
//! many time series there are.

/// Makes an enumeration whose variants have a word each, in the order of their numbers.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$about])* $variant,)*
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its word in a label.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

words! {
    /// What a request asks for.
    Operation {
        /// Reads one value, or a part of one.
        Get = "get",
        /// Reads what is known about an object, its value left out.
        Head = "head",
        /// Stores one value, whatever was there.
        Put = "put",
        /// Deletes one object.
        Delete = "delete",
        /// Changes an object by what it was.
        Update = "update",
        /// Lists or counts keys.
        List = "list",
        /// Reads several objects.
        MultiGet = "multi_get",
        /// Stores several objects.
        MultiPut = "multi_put",
        /// Deletes several objects.
        MultiDelete = "multi_delete",
        /// Does several things as one step.
        Transaction = "transaction",
        /// Anything else: about the connection, or the server.
        Other = "other",
    }
}

words! {
    /// How a request ended.
    RequestResult {
        /// It was done.
        Ok = "ok",
        /// There is no such object.
        NotFound = "not_found",
        /// A condition of the request did not hold.
        Rejected = "rejected",
        /// The request is wrong.
        Invalid = "invalid",
        /// The caller showed no credentials, or wrong ones.
        Denied = "denied",
        /// There is no room: of memory, of space, of time.
        Refused = "refused",
        /// Its deadline passed, or its caller gave up.
        Cancelled = "cancelled",
        /// The store or the device failed.
        Failed = "failed",
    }
}

words! {
    /// Why a frontend refused or closed something.
    RefusalCause {
        /// A connection found no room among those that have shown credentials.
        Connections = "connections",
        /// A connection without credentials made room for a new one.
        Evicted = "evicted",
        /// A connection showed no credentials in time.
        Overdue = "overdue",
        /// A caller showed no credentials, or wrong ones.
        Credentials = "credentials",
        /// There was no memory for a request or its answer.
        Memory = "memory",
        /// A peer sent or took too little.
        Slow = "slow",
    }
}
