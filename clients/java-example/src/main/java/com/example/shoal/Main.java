package com.example.shoal;

import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;

/**
 * How a Java program uses Shoal: {@code objects} for shoal.v1.ObjectStore, {@code pairs} for io.grpc.KeyValueService.
 *
 * <p>Each step checks what it got; the exit code says whether all of it was as it must be. docs/clients/java.md has the rest.
 */
public final class Main {
    /** The longest message either way: a value of 4 MiB with everything around it. gRPC's own default is 4 MiB. */
    private static final int MESSAGE_BYTES_MAX = (4 << 20) + (256 << 10);

    private Main() {}

    /**
     * Arguments: host:port, then what to show. SHOAL_CA in the environment names a file with the authority (PEM) that vouches
     * for the server, and turns TLS on; SHOAL_TOKEN_FILE names one with a bearer token.
     */
    public static void main(String[] arguments) throws Exception {
        if (arguments.length < 2) {
            throw new IllegalArgumentException("say where the server is and what to show: 127.0.0.1:7411 objects pairs");
        }
        ManagedChannel channel = connect(arguments[0], System.getenv("SHOAL_CA"), System.getenv("SHOAL_TOKEN_FILE"));
        try {
            for (String what : Arrays.asList(arguments).subList(1, arguments.length)) {
                switch (what) {
                    case "objects" -> new Objects(channel).run();
                    case "pairs" -> Pairs.run(channel);
                    default -> throw new IllegalArgumentException(what + " is neither objects nor pairs");
                }
            }
        } finally {
            channel.shutdown().awaitTermination(5, TimeUnit.SECONDS);
        }
        System.out.println("all as it must be");
    }

    /** Opens a channel; the first call connects it. */
    private static ManagedChannel connect(String server, String authority, String tokenFile) throws IOException {
        ChannelCredentials credentials = authority == null
                ? InsecureChannelCredentials.create()
                : TlsChannelCredentials.newBuilder().trustManager(new File(authority)).build();
        ManagedChannelBuilder<?> builder = Grpc.newChannelBuilder(server, credentials)
                .maxInboundMessageSize(MESSAGE_BYTES_MAX)
                // The program decides what is sent again, since it knows of request ids.
                .disableRetry();
        if (tokenFile != null) {
            Metadata metadata = new Metadata();
            String token = Files.readString(Path.of(tokenFile)).strip();
            metadata.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + token);
            builder.intercept(MetadataUtils.newAttachHeadersInterceptor(metadata));
        }
        return builder.build();
    }
}
