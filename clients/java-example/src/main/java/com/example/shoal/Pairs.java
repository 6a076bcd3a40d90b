package com.example.shoal;

import com.google.protobuf.ByteString;
import io.grpc.Channel;
import io.grpc.KeyValue.CreateRequest;
import io.grpc.KeyValue.DeleteRequest;
import io.grpc.KeyValue.RetrieveRequest;
import io.grpc.KeyValue.UpdateRequest;
import io.grpc.KeyValueServiceGrpc;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.util.concurrent.TimeUnit;

/** Shows io.grpc.KeyValueService: four calls whose failures are status codes. What was answered is durable. */
final class Pairs {
    private Pairs() {}

    static void run(Channel channel) {
        KeyValueServiceGrpc.KeyValueServiceBlockingStub service =
                KeyValueServiceGrpc.newBlockingStub(channel).withDeadlineAfter(30, TimeUnit.SECONDS);
        // Keys are bytes of any kind.
        ByteString key = ByteString.copyFrom(new byte[] {0, (byte) 0xff, 'j'});
        ByteString one = ByteString.copyFromUtf8("one");
        ByteString two = ByteString.copyFromUtf8("two");
        expect("delete of what may be missing", Status.Code.OK,
                () -> service.delete(DeleteRequest.newBuilder().setKey(key).build()));
        expect("retrieve of nothing", Status.Code.NOT_FOUND,
                () -> service.retrieve(RetrieveRequest.newBuilder().setKey(key).build()));
        expect("update of nothing", Status.Code.NOT_FOUND,
                () -> service.update(UpdateRequest.newBuilder().setKey(key).setValue(one).build()));
        expect("create", Status.Code.OK,
                () -> service.create(CreateRequest.newBuilder().setKey(key).setValue(one).build()));
        expect("create again", Status.Code.ALREADY_EXISTS,
                () -> service.create(CreateRequest.newBuilder().setKey(key).setValue(two).build()));
        expect("update", Status.Code.OK,
                () -> service.update(UpdateRequest.newBuilder().setKey(key).setValue(two).build()));
        ByteString found = service.retrieve(RetrieveRequest.newBuilder().setKey(key).build()).getValue();
        if (!found.equals(two)) {
            throw new IllegalStateException("retrieve gave " + found);
        }
        expect("delete", Status.Code.OK, () -> service.delete(DeleteRequest.newBuilder().setKey(key).build()));
    }

    /** Makes a call and compares its status. */
    private static void expect(String what, Status.Code code, Runnable call) {
        Status.Code got = Status.Code.OK;
        try {
            call.run();
        } catch (StatusRuntimeException error) {
            got = error.getStatus().getCode();
        }
        if (got != code) {
            throw new IllegalStateException(what + ": " + got + " instead of " + code);
        }
        System.out.println(what + ": " + code);
    }
}
