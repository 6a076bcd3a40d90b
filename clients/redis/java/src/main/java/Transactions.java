import io.lettuce.core.RedisClient;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;

/** Transactions of Lettuce: {@code Transactions HOST:PORT}. */
public final class Transactions {
    private Transactions() {}

    private static void check(boolean right, String what) {
        if (!right) {
            throw new IllegalStateException("wrong: " + what);
        }
    }

    /** Counts up by WATCH, until it was done. */
    private static void countUp(RedisCommands<String, String> commands) {
        while (true) {
            commands.watch("java:count");
            String before = commands.get("java:count");
            commands.multi();
            commands.set("java:count", String.valueOf(before == null ? 1 : Integer.parseInt(before) + 1));
            if (!commands.exec().wasDiscarded()) {
                return;
            }
        }
    }

    public static void main(String[] args) throws Exception {
        RedisClient client = RedisClient.create("redis://" + args[0]);
        try (StatefulRedisConnection<String, String> connection = client.connect()) {
            RedisCommands<String, String> commands = connection.sync();
            commands.multi();
            commands.set("java:a", "1");
            commands.incr("java:a");
            commands.get("java:a");
            TransactionResult result = commands.exec();
            check(!result.wasDiscarded() && result.size() == 3, "the answers are " + result);
            check(result.get(1).equals(2L) && result.get(2).equals("2"), "the answers are " + result);
            commands.multi();
            commands.set("java:a", "9");
            commands.discard();
            check(commands.get("java:a").equals("2"), "DISCARD");
            commands.del("java:count");
            Thread[] threads = new Thread[4];
            for (int number = 0; number < threads.length; number++) {
                threads[number] = new Thread(() -> {
                    try (StatefulRedisConnection<String, String> own = client.connect()) {
                        for (int round = 0; round < 20; round++) {
                            countUp(own.sync());
                        }
                    }
                });
                threads[number].start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
            check(commands.get("java:count").equals("80"), "WATCH: " + commands.get("java:count"));
        } finally {
            client.shutdown();
        }
        System.out.println("Lettuce: transactions are well");
    }
}
