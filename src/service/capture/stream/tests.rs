//! Tests of streams with real pipes: floods that a thread reads, and output that the runtime reads.

use std::io::Write;
use std::sync::atomic::AtomicU32;

use super::*;
use crate::capture::KEPT_BYTES;

/// Records the output, and how often the limit was reported.
#[derive(Default)]
struct RecordingFollower {
    over: AtomicU32,
    bytes: Mutex<Vec<u8>>,
}

impl Follower for RecordingFollower {
    fn received(&self, _: Source, bytes: &[u8]) {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
    }

    fn over(&self) {
        self.over.fetch_add(1, Ordering::AcqRel);
    }
}

impl RecordingFollower {
    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct TestStream {
    writer: std::fs::File,
    stream: Arc<Stream>,
    follower: Arc<RecordingFollower>,
}

fn test_stream(limit: Option<u64>) -> io::Result<TestStream> {
    let (writer, reader) = pipe::pipe()?;
    let meter = Arc::new(Meter::new(limit));
    let stream = Stream::new(reader, KEPT_BYTES, Source::Stdout, &meter);
    Ok(TestStream { writer: writer.into_blocking_fd()?.into(), stream, follower: Arc::default() })
}

/// Returns numbered lines, so that their order can be checked.
fn pattern(length: usize) -> Vec<u8> {
    (0..length / 8).flat_map(|number| format!("{number:07}\n").into_bytes()).collect()
}

fn is_a_flood(stream: &Stream) -> bool {
    matches!(stream.state().pipe, Pipe::Flood(_))
}

/// Waits for a condition that must become true.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_flood_moves_to_a_thread_and_back_and_every_byte_arrives_in_order() -> io::Result<()> {
    let TestStream { mut writer, stream, follower } = test_stream(None)?;
    let reading = Arc::clone(&stream);
    let listening = Arc::clone(&follower);
    let reader = tokio::spawn(async move { reading.to_the_end(&listening).await });
    let all = pattern(8 << 20);
    let (first, second) = all.split_at(4 << 20);
    for part in [first.to_vec(), second.to_vec()] {
        let received = follower.bytes().len();
        let all = part.len();
        let seen = Arc::clone(&stream);
        let written = tokio::task::spawn_blocking(move || {
            // In pieces, so that the test can check the stream between writes.
            let flooded = part.chunks(8192).filter(|piece| {
                assert!(writer.write_all(piece).is_ok());
                is_a_flood(&seen)
            });
            (flooded.count(), writer)
        });
        let (flooded, open) = written.await?;
        writer = open;
        assert!(flooded > 0, "no thread has read it");
        until("everything is received", || follower.bytes().len() == received + all).await;
        until("the runtime has it back", || !is_a_flood(&stream)).await;
    }
    writer.write_all(b"drops")?;
    until("a drop is received", || follower.bytes().len() == all.len() + 5).await;
    assert!(!is_a_flood(&stream), "a drop is no flood");
    drop(writer);
    reader.await?;
    assert!(follower.bytes() == [&all, &b"drops"[..]].concat(), "not in order");
    let captured = stream.into_captured();
    assert_eq!(captured.total(), 5 + (8 << 20));
    assert!(captured.head() == all.get(..KEPT_BYTES / 2).unwrap_or_default());
    assert!(captured.tail().ends_with(b"1048575\ndrops"));
    Ok(())
}

#[tokio::test]
async fn slow_output_gets_no_thread() -> io::Result<()> {
    let TestStream { mut writer, stream, follower } = test_stream(None)?;
    for _ in 0..100 {
        writer.write_all(&[b'x'; 1000])?;
        assert_eq!(stream.look(&follower), WritingEnds::Yes);
        assert!(!is_a_flood(&stream));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(writer);
    stream.to_the_end(&follower).await;
    assert_eq!(follower.bytes().len(), 100_000);
    Ok(())
}

/// Makes a stream that a thread reads, and a task that writes to it until it cannot.
async fn flooded(limit: Option<u64>) -> io::Result<(Arc<Stream>, Arc<RecordingFollower>, Writing)> {
    let TestStream { mut writer, stream, follower } = test_stream(limit)?;
    let writing = tokio::task::spawn_blocking(move || {
        loop {
            if let Err(error) = writer.write_all(&[b'x'; 8192]) {
                return error.kind();
            }
        }
    });
    while !is_a_flood(&stream) {
        stream.readable().await;
        stream.look(&follower);
    }
    Ok((stream, follower, writing))
}

type Writing = tokio::task::JoinHandle<ErrorKind>;

#[tokio::test]
async fn writers_to_a_closed_or_dropped_flood_get_a_broken_pipe() -> io::Result<()> {
    let (stream, _ear, writing) = flooded(None).await?;
    stream.close();
    assert_eq!(writing.await?, ErrorKind::BrokenPipe, "closed");
    let (stream, follower, writing) = flooded(None).await?;
    drop(stream);
    assert_eq!(writing.await?, ErrorKind::BrokenPipe, "forgotten");
    drop(follower);
    let (stream, follower, writing) = flooded(None).await?;
    drop(follower);
    assert_eq!(writing.await?, ErrorKind::BrokenPipe, "no follower");
    drop(stream);
    Ok(())
}

#[tokio::test]
async fn a_thread_reports_the_limit_once_and_keeps_reading() -> io::Result<()> {
    let limit = 16 << 20;
    let (stream, follower, writing) = flooded(Some(limit)).await?;
    until("more than the limit", || stream.total() > 2 * limit).await;
    assert_eq!(follower.over.load(Ordering::Acquire), 1);
    stream.close();
    assert_eq!(writing.await?, ErrorKind::BrokenPipe);
    Ok(())
}

#[tokio::test]
async fn flood_output_after_the_end_of_the_command_is_kept_separately() -> io::Result<()> {
    let (stream, follower, writing) = flooded(None).await?;
    stream.seal(&*follower);
    let total = stream.total();
    let received = follower.bytes().len();
    until("more comes", || stream.printed() > total + (1 << 20)).await;
    assert_eq!(stream.total(), total, "later output is not the command's");
    assert_eq!((u64::try_from(received).ok(), follower.bytes().len()), (Some(total), received));
    assert_eq!(stream.late().whole(), None);
    stream.close();
    assert_eq!(writing.await?, ErrorKind::BrokenPipe);
    Ok(())
}

#[tokio::test]
async fn a_closed_stream_counts_what_it_holds_and_an_open_one_all_that_it_may() -> io::Result<()> {
    let TestStream { mut writer, stream, follower } = test_stream(None)?;
    writer.write_all(&pattern(800))?;
    stream.readable().await;
    stream.look(&follower);
    let max = u64::try_from(KEPT_BYTES + MAX_LATE_BYTES).map_err(io::Error::other)?;
    assert_eq!((stream.kept_bytes(), stream.max_bytes()), (800, max));
    drop(writer);
    stream.to_the_end(&follower).await;
    assert_eq!((stream.kept_bytes(), stream.max_bytes()), (800, 800));
    Ok(())
}
