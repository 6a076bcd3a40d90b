//! Writes that are done once, even if a client sends them several times: `SHOAL.SESSION <session> <sequence> <command ...>`.
//!
//! The command's answer is kept with the write (R17 of the engine, `stored_answer.rs`), so that a repetition gets the same answer.
//! Commands that write no keys are refused.

use bytes::Bytes;
use shoal_engine::RequestId;

use super::call::{Call, Command, Outcome, Run, Scope, is, wrong_count};
use crate::answer::{Answer, Failed};

const NOT_ONCE: &str = "ERR SHOAL.SESSION takes a session, a sequence number and a command that writes keys";

fn number(word: &[u8]) -> Result<u64, Failed> {
    std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).ok_or(NOT_ONCE.into())
}

/// The request id of an EXEC: `SHOAL.SESSION <session> <sequence> EXEC`.
pub(crate) fn request_id_of(words: &[Bytes]) -> Result<Option<RequestId>, Failed> {
    match words {
        [_, session, sequence, _] => {
            Ok(Some(RequestId { session: number(session)?, sequence: number(sequence)? }))
        }
        _ => Ok(None),
    }
}

/// `SHOAL.SESSION NEW` returns a session; with a session, a sequence number and one of `commands`, it runs that command once.
pub(super) async fn session(mut call: Call, commands: &'static [Command]) -> Outcome {
    if call.words.len() == 2 && is(call.word(1), "new") {
        let session = call.frontend.entropy.next_u64() >> 1;
        return Ok(Answer::Integer(session as i64).into());
    }
    let request_id = RequestId { session: number(call.word(1))?, sequence: number(call.word(2))? };
    let words = call.rest(3).to_vec();
    let command = words.first().and_then(|name| Command::find(commands, name));
    let command = command.filter(|command| command.writes && command.keys.first == 1).ok_or(NOT_ONCE)?;
    let (Run::Task(run), true) = (command.run, command.takes(words.len())) else {
        return Err(wrong_count(command.name));
    };
    (call.scope, call.words, call.command) = (Scope::Dedup(request_id), words, command);
    run(call).await
}
