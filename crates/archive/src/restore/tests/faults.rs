//! A bucket that fails in every way: the state of the model, or an error with a name. Never another state.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_restore_from_a_failing_bucket_is_right_or_fails() {
    let (mut right, mut failed) = (0, 0);
    for seed in 0..60 {
        let mut history = History::new(seed + 500);
        history.live(15);
        history.base();
        history.live(5);
        history.close();
        let Some(last) = history.moments.last().map(|moment| (moment.last, moment.objects.clone())) else {
            continue;
        };
        let store = store_of(&history, seed, 100);
        match restore(&store, RestoreMoment::Version(last.0)).await {
            Ok((found, state)) => {
                assert_eq!((found, state.version), (last.1, last.0), "seed {seed}");
                right += 1;
            }
            Err(error) => {
                assert!(!matches!(error, RestoreError::Target(_)), "{error}");
                failed += 1;
            }
        }
    }
    assert!(right > 20 && failed > 0, "{right} right, {failed} failed");
}
