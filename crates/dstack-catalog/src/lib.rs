//! Offers and prices of every cloud: collect, store, query.
