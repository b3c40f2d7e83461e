/// The checks of a kind of things, as tests in a module of that name: `one` makes a cloud with the thing that is asked for, `several` one
/// with those of `checks::neighbours`. All checks, or those that are named.
///
/// ```ignore
/// checks_of!(machines: one_machine, two_machines);
/// checks_of!(servers: one_server, two_servers; whole_life, loss);
/// ```
#[macro_export]
macro_rules! checks_of {
    ($kind:ident: $one:path, $several:path) => {
        $crate::checks_of!($kind: $one, $several;
            whole_life, sold_out, loss, any_fault_anywhere, another_attempt, neighbours, left_behind, removed_before_listed, soak);
    };
    ($kind:ident: $one:path, $several:path; $($check:ident),+) => {
        mod $kind {
            #[allow(unused_imports)] // of those that are named, not all are needed
            use super::*;

            $($crate::checks_of!(@ $check $one, $several);)+
        }
    };
    (@ whole_life $one:path, $several:path) => {
        #[tokio::test(start_paused = true)]
        async fn life_from_making_to_removal() {
            let (cloud, subject) = $one().await;
            $crate::checks::whole_life(&cloud, &subject).await;
        }
    };
    (@ sold_out $one:path, $several:path) => {
        #[tokio::test(start_paused = true)]
        async fn nothing_is_to_be_had() {
            let (cloud, subject) = $one().await;
            $crate::checks::sold_out(&cloud, &subject).await;
        }
    };
    (@ loss $one:path, $several:path) => {
        #[tokio::test(start_paused = true)]
        async fn what_breaks_is_seen() {
            let (cloud, subject) = $one().await;
            $crate::checks::loss(&cloud, &subject).await;
        }
    };
    (@ any_fault_anywhere $one:path, $several:path) => {
        #[tokio::test(start_paused = true)]
        async fn whatever_happens_nothing_is_made_twice_or_left() {
            $crate::checks::any_fault_anywhere($one).await;
        }
    };
    (@ another_attempt $one:path, $several:path) => {
        #[tokio::test(start_paused = true)]
        async fn another_attempt_makes_another_one() {
            $crate::checks::another_attempt($one).await;
        }
    };
    (@ neighbours $one:path, $several:path) => {
        #[tokio::test(start_paused = true)]
        async fn those_of_others_are_neither_taken_nor_ended() {
            $crate::checks::neighbours($several).await;
        }
    };
    (@ left_behind $one:path, $several:path) => {
        #[tokio::test(start_paused = true)]
        async fn what_was_left_behind_is_found_and_ended() {
            $crate::checks::left_behind($one).await;
        }
    };
    (@ removed_before_listed $one:path, $several:path) => {
        #[tokio::test(start_paused = true)]
        async fn what_is_removed_before_it_is_listed_is_not_left() {
            $crate::checks::removed_before_listed($one).await;
        }
    };
    (@ soak $one:path, $several:path) => {
        #[tokio::test(start_paused = true)]
        async fn many_lives() {
            let (cloud, subject) = $one().await;
            $crate::soak(&cloud, &subject).await;
        }
    };
}
