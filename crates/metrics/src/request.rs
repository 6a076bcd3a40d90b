//! Operations, results and causes of refusals, in words that both frontends share. Each list is short and closed: it
//! bounds the number of time series.

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
    /// The request's operation.
    Operation {
        /// Reads one value, or a part of one.
        Get = "get",
        /// Reads an object's attributes without its value.
        Head = "head",
        /// Stores one value, or replaces it.
        Put = "put",
        /// Deletes one object.
        Delete = "delete",
        /// Changes an object on the basis of its old value.
        Update = "update",
        /// Lists or counts keys.
        List = "list",
        /// Reads several objects.
        MultiGet = "multi_get",
        /// Stores several objects.
        MultiPut = "multi_put",
        /// Deletes several objects.
        MultiDelete = "multi_delete",
        /// Does several things as one write batch.
        Transaction = "transaction",
        /// Anything else: calls about the connection or the server.
        Other = "other",
    }
}

words! {
    /// The end of a request.
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
        /// The server lacks memory or space, or cannot take it now.
        Refused = "refused",
        /// Its deadline passed, or its caller cancelled it.
        Cancelled = "cancelled",
        /// The store or the device failed.
        Failed = "failed",
    }
}

words! {
    /// The cause of a refusal.
    RefusalCause {
        /// A connection found no room, because all others have shown credentials.
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
