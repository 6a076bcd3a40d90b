package com.example.shoal;

import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.Status;
import io.grpc.Channel;
import io.grpc.Metadata;
import io.grpc.Status.Code;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import shoal.v1.ObjectStoreGrpc;
import shoal.v1.ObjectStoreOuterClass.DeleteRequest;
import shoal.v1.ObjectStoreOuterClass.Failure;
import shoal.v1.ObjectStoreOuterClass.GetRequest;
import shoal.v1.ObjectStoreOuterClass.GetResponse;
import shoal.v1.ObjectStoreOuterClass.GetStreamRequest;
import shoal.v1.ObjectStoreOuterClass.GetStreamResponse;
import shoal.v1.ObjectStoreOuterClass.ListEntry;
import shoal.v1.ObjectStoreOuterClass.ListRequest;
import shoal.v1.ObjectStoreOuterClass.ListResponse;
import shoal.v1.ObjectStoreOuterClass.PutRequest;
import shoal.v1.ObjectStoreOuterClass.PutResponse;
import shoal.v1.ObjectStoreOuterClass.PutStreamEnd;
import shoal.v1.ObjectStoreOuterClass.PutStreamHeader;
import shoal.v1.ObjectStoreOuterClass.PutStreamRequest;
import shoal.v1.ObjectStoreOuterClass.RejectRules;

/** Shows shoal.v1.ObjectStore: conditions, versions, retries that are done once, streams, listing. For one thread. */
final class Objects {
    private static final String BUCKET = "java-example";
    /** The longest chunk of a stream. */
    private static final int CHUNK_BYTES = 1 << 20;
    /** How often a write is sent at most. */
    private static final int ATTEMPTS_MAX = 6;

    private static final Metadata.Key<String> SESSION =
            Metadata.Key.of("shoal-session", Metadata.ASCII_STRING_MARSHALLER);
    private static final Metadata.Key<String> SEQUENCE =
            Metadata.Key.of("shoal-sequence", Metadata.ASCII_STRING_MARSHALLER);

    private final Channel channel;
    private final ObjectStoreGrpc.ObjectStoreBlockingStub store;
    /** Who this program's writes are, so that the server does one that is sent again once. */
    private final String session = Long.toUnsignedString(new SecureRandom().nextLong());
    private long sequence;

    Objects(Channel channel) {
        this.channel = channel;
        this.store = ObjectStoreGrpc.newBlockingStub(channel);
    }

    void run() throws Exception {
        ByteString key = ByteString.copyFromUtf8("greeting");
        store.delete(DeleteRequest.newBuilder().setBucket(BUCKET).setKey(key).build());

        // Create: the rule rejects the write where there is an object already.
        PutRequest create = PutRequest.newBuilder().setBucket(BUCKET).setKey(key)
                .setValue(ByteString.copyFromUtf8("hello"))
                .setRules(RejectRules.newBuilder().setIfExists(true)).build();
        long made = put(create).getVersion();
        System.out.println("created, version " + made);

        // Again, as another write: the failure says which rule and which version is there.
        try {
            put(create);
            throw new IllegalStateException("a second create must fail its condition");
        } catch (StatusRuntimeException error) {
            Failure failure = failureOf(error);
            if (failure.getRule() != Failure.Rule.IF_EXISTS || failure.getCurrentVersion() != made) {
                throw error;
            }
        }
        compareAndSet(key, ByteString.copyFromUtf8("!"));

        byte[] large = new byte[3 * CHUNK_BYTES + 5];
        new SecureRandom().nextBytes(large);
        ByteString name = ByteString.copyFromUtf8("large");
        putStream(name, ByteString.copyFrom(large));
        if (!getStream(name).equals(ByteString.copyFrom(large))) {
            throw new IllegalStateException("the stream gave other bytes");
        }
        List<ByteString> keys = list();
        if (!keys.equals(List.of(key, name))) {
            throw new IllegalStateException("list gave " + keys);
        }
    }

    /** Reads, changes, and stores where nobody was faster; else again. */
    private void compareAndSet(ByteString key, ByteString suffix) throws InterruptedException {
        while (true) {
            GetResponse found = store.get(GetRequest.newBuilder().setBucket(BUCKET).setKey(key).build());
            PutRequest put = PutRequest.newBuilder().setBucket(BUCKET).setKey(key)
                    .setValue(found.getValue().concat(suffix))
                    .setRules(RejectRules.newBuilder().setIfVersionNot(found.getInfo().getVersion())).build();
            try {
                long version = put(put).getVersion();
                System.out.println(put.getValue().toStringUtf8() + ", version " + version);
                return;
            } catch (StatusRuntimeException error) {
                if (failureOf(error).getKind() != Failure.Kind.CONDITION_FAILED) {
                    throw error;
                }
            }
        }
    }

    /** Sends a write until its outcome is known, or it was sent often enough. */
    private PutResponse put(PutRequest request) throws InterruptedException {
        sequence++;
        Metadata requestId = new Metadata();
        requestId.put(SESSION, session);
        requestId.put(SEQUENCE, Long.toUnsignedString(sequence));
        ObjectStoreGrpc.ObjectStoreBlockingStub once =
                store.withInterceptors(MetadataUtils.newAttachHeadersInterceptor(requestId));
        long pauseMs = 10;
        for (int attempt = 1; ; attempt++) {
            try {
                return once.withDeadlineAfter(30, TimeUnit.SECONDS).put(request);
            } catch (StatusRuntimeException error) {
                if (attempt == ATTEMPTS_MAX || !worthAnother(error)) {
                    throw error;
                }
            }
            Thread.sleep(pauseMs);
            pauseMs *= 4;
        }
    }

    /** Whether the same write, with its request id, may succeed or tell its outcome when it is sent again. */
    private static boolean worthAnother(StatusRuntimeException error) {
        return switch (failureOf(error).getKind()) {
            case BUSY, OVERLOADED, CLOSED, TOO_SLOW, UNKNOWN_OUTCOME -> true;
            // From the transport: a broken connection.
            case KIND_UNSPECIFIED -> error.getStatus().getCode() == Code.UNAVAILABLE;
            default -> false;
        };
    }

    /** What a failed call says to programs; of the unspecified kind where the status comes from elsewhere. */
    private static Failure failureOf(StatusRuntimeException error) {
        Status status = StatusProto.fromThrowable(error);
        if (status != null) {
            for (Any detail : status.getDetailsList()) {
                if (detail.is(Failure.class)) {
                    try {
                        return detail.unpack(Failure.class);
                    } catch (InvalidProtocolBufferException garbled) {
                        return Failure.getDefaultInstance();
                    }
                }
            }
        }
        return Failure.getDefaultInstance();
    }

    /** Stores a value of any size: a header, chunks, the end. Without the end nothing is stored. */
    private void putStream(ByteString key, ByteString value) throws Exception {
        CompletableFuture<PutResponse> answer = new CompletableFuture<>();
        StreamObserver<PutStreamRequest> stream = ObjectStoreGrpc.newStub(channel).putStream(new StreamObserver<>() {
            @Override
            public void onNext(PutResponse response) {
                answer.complete(response);
            }

            @Override
            public void onError(Throwable error) {
                answer.completeExceptionally(error);
            }

            @Override
            public void onCompleted() {}
        });
        PutStreamHeader header = PutStreamHeader.newBuilder().setBucket(BUCKET).setKey(key).build();
        stream.onNext(PutStreamRequest.newBuilder().setHeader(header).build());
        // A value that does not fit in memory must wait for ClientCallStreamObserver.isReady() in here.
        for (int start = 0; start < value.size(); start += CHUNK_BYTES) {
            ByteString chunk = value.substring(start, Math.min(value.size(), start + CHUNK_BYTES));
            stream.onNext(PutStreamRequest.newBuilder().setChunk(chunk).build());
        }
        PutStreamEnd end = PutStreamEnd.newBuilder().setBytes(value.size()).build();
        stream.onNext(PutStreamRequest.newBuilder().setEnd(end).build());
        stream.onCompleted();
        long version = answer.get(30, TimeUnit.SECONDS).getVersion();
        System.out.println("stored " + value.size() + " bytes, version " + version);
    }

    /** Reads a value of any size. All of it is of one version. */
    private ByteString getStream(ByteString key) {
        GetStreamRequest request = GetStreamRequest.newBuilder().setBucket(BUCKET).setKey(key).build();
        Iterator<GetStreamResponse> messages = store.getStream(request);
        GetStreamResponse first = messages.next();
        ByteString value = first.getChunk();
        while (messages.hasNext()) {
            value = value.concat(messages.next().getChunk());
        }
        if (value.size() != first.getInfo().getBytes()) {
            throw new IllegalStateException(value.size() + " of " + first.getInfo().getBytes() + " bytes came");
        }
        return value;
    }

    /** Reads the keys page by page. */
    private List<ByteString> list() {
        List<ByteString> keys = new ArrayList<>();
        ListRequest.Builder request = ListRequest.newBuilder().setBucket(BUCKET).setPageSize(1);
        while (true) {
            ListResponse page = store.list(request.build());
            for (ListEntry entry : page.getEntriesList()) {
                System.out.println(entry.getKey().toStringUtf8() + "\t" + entry.getInfo().getBytes() + " bytes");
                keys.add(entry.getKey());
            }
            // A page may be short, even empty, and yet not be the last.
            if (!page.hasNextStartAfter()) {
                return keys;
            }
            request.setStartAfter(page.getNextStartAfter());
        }
    }
}
