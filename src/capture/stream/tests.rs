//! Streams of real pipes: floods that a thread reads, and what is left to the runtime.

use std::io::Write;
use std::sync::atomic::AtomicU32;

use super::*;
use crate::KEPT_BYTES;

/// Counts how often it was told that there is too much, and keeps what it heard.
#[derive(Default)]
struct Ear {
    over: AtomicU32,
    bytes: Mutex<Vec<u8>>,
}

impl Follower for Ear {
    fn received(&self, _: Source, bytes: &[u8]) {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
    }

    fn over(&self) {
        self.over.fetch_add(1, Ordering::AcqRel);
    }
}

impl Ear {
    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Made {
    writer: std::fs::File,
    stream: Arc<Stream>,
    ear: Arc<Ear>,
}

fn made(limit: Option<u64>) -> io::Result<Made> {
    let (writer, reader) = pipe::pipe()?;
    let meter = Arc::new(Meter::new(limit));
    let stream = Stream::new(reader, KEPT_BYTES, Source::Stdout, &meter);
    Ok(Made { writer: writer.into_blocking_fd()?.into(), stream, ear: Arc::default() })
}

/// Bytes that tell where they belong.
fn pattern(length: usize) -> Vec<u8> {
    (0..length / 8).flat_map(|place| format!("{place:07}\n").into_bytes()).collect()
}

fn is_a_flood(stream: &Stream) -> bool {
    matches!(stream.kept().pipe, Pipe::Flood(_))
}

/// Waits for a state that must come.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < patience, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_flood_goes_to_a_thread_and_back_and_every_byte_is_heard_in_order() -> io::Result<()> {
    let Made { mut writer, stream, ear } = made(None)?;
    let (reading, listening) = (Arc::clone(&stream), Arc::clone(&ear));
    let reader = tokio::spawn(async move { reading.to_the_end(&listening).await });
    let all = pattern(8 << 20);
    let (first, second) = all.split_at(4 << 20);
    for part in [first.to_vec(), second.to_vec()] {
        let (heard, all) = (ear.bytes().len(), part.len());
        let seen = Arc::clone(&stream);
        let written = tokio::task::spawn_blocking(move || {
            // In pieces, so that the writer is met while it writes.
            let flooded = part.chunks(8192).filter(|piece| {
                assert!(writer.write_all(piece).is_ok());
                is_a_flood(&seen)
            });
            (flooded.count(), writer)
        });
        let (flooded, open) = written.await?;
        writer = open;
        assert!(flooded > 0, "no thread has read it");
        until("all of it is heard", || ear.bytes().len() == heard + all).await;
        until("the runtime has it again", || !is_a_flood(&stream)).await;
    }
    writer.write_all(b"drops")?;
    until("a drop is heard", || ear.bytes().len() == all.len() + 5).await;
    assert!(!is_a_flood(&stream), "a drop is no flood");
    drop(writer);
    reader.await?;
    assert!(ear.bytes() == [&all, &b"drops"[..]].concat(), "not in order");
    let captured = stream.into_captured();
    assert_eq!(captured.total(), 5 + (8 << 20));
    assert!(captured.head() == all.get(..KEPT_BYTES / 2).unwrap_or_default());
    assert!(captured.tail().ends_with(b"1048575\ndrops"));
    Ok(())
}

#[tokio::test]
async fn little_output_has_no_thread_however_often_it_comes() -> io::Result<()> {
    let Made { mut writer, stream, ear } = made(None)?;
    for _ in 0..100 {
        writer.write_all(&[b'x'; 1000])?;
        assert_eq!(stream.look(&ear), WritingEnds::Yes);
        assert!(!is_a_flood(&stream));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(writer);
    stream.to_the_end(&ear).await;
    assert_eq!(ear.bytes().len(), 100_000);
    Ok(())
}

/// A stream that a thread reads, and who writes to it until it cannot.
async fn flooded(limit: Option<u64>) -> io::Result<(Arc<Stream>, Arc<Ear>, Writing)> {
    let Made { mut writer, stream, ear } = made(limit)?;
    let writing = tokio::task::spawn_blocking(move || {
        loop {
            if let Err(error) = writer.write_all(&[b'x'; 8192]) {
                return error.kind();
            }
        }
    });
    while !is_a_flood(&stream) {
        stream.readable().await;
        stream.look(&ear);
    }
    Ok((stream, ear, writing))
}

type Writing = tokio::task::JoinHandle<ErrorKind>;

#[tokio::test]
async fn who_writes_to_a_flood_that_is_closed_or_forgotten_is_told_so() -> io::Result<()> {
    let (stream, _ear, writing) = flooded(None).await?;
    stream.close();
    assert_eq!(writing.await?, ErrorKind::BrokenPipe, "closed");
    let (stream, ear, writing) = flooded(None).await?;
    drop(stream);
    assert_eq!(writing.await?, ErrorKind::BrokenPipe, "forgotten");
    drop(ear);
    let (stream, ear, writing) = flooded(None).await?;
    drop(ear);
    assert_eq!(writing.await?, ErrorKind::BrokenPipe, "nobody listens");
    drop(stream);
    Ok(())
}

#[tokio::test]
async fn the_limit_is_told_once_from_a_thread_and_reading_goes_on() -> io::Result<()> {
    let limit = 16 << 20;
    let (stream, ear, writing) = flooded(Some(limit)).await?;
    until("more than the limit", || stream.total() > 2 * limit).await;
    assert_eq!(ear.over.load(Ordering::Acquire), 1);
    stream.close();
    assert_eq!(writing.await?, ErrorKind::BrokenPipe);
    Ok(())
}

#[tokio::test]
async fn what_a_flood_writes_after_the_end_of_its_command_is_kept_apart() -> io::Result<()> {
    let (stream, ear, writing) = flooded(None).await?;
    stream.seal(&*ear);
    let (total, heard) = (stream.total(), ear.bytes().len());
    until("more comes", || stream.printed() > total + (1 << 20)).await;
    assert_eq!(stream.total(), total, "what comes later is not the command's");
    assert_eq!((u64::try_from(heard).ok(), ear.bytes().len()), (Some(total), heard));
    assert_eq!(stream.late().whole(), None);
    stream.close();
    assert_eq!(writing.await?, ErrorKind::BrokenPipe);
    Ok(())
}

#[tokio::test]
async fn a_closed_stream_counts_what_it_holds_and_an_open_one_all_that_it_may() -> io::Result<()> {
    let Made { mut writer, stream, ear } = made(None)?;
    writer.write_all(&pattern(800))?;
    stream.readable().await;
    stream.look(&ear);
    let most = u64::try_from(KEPT_BYTES + LATE_BYTES).map_err(io::Error::other)?;
    assert_eq!((stream.kept_bytes(), stream.max_bytes()), (800, most));
    drop(writer);
    stream.to_the_end(&ear).await;
    assert_eq!((stream.kept_bytes(), stream.max_bytes()), (800, 800));
    Ok(())
}
