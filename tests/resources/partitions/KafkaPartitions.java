import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/**
 * Prints the partitions that the Java client's producer chooses for some keys: the key in hex, its murmur2 hash, the
 * count of partitions and the chosen one.
 *
 * <p>java -cp "$HOME/.cache/kafka-assigner/kafka-4.3.1/libs/*" KafkaPartitions.java > java_client.csv
 */
public final class KafkaPartitions {
    private static final int[] COUNTS = {1, 2, 3, 4, 7, 12, 64, 1000, 100000};

    public static void main(String[] arguments) {
        List<byte[]> keys = new ArrayList<>();
        for (String text : List.of("", "a", "ab", "abc", "abcd", "user-42", "überall", "キー", "0123456789abcdef")) {
            keys.add(text.getBytes(StandardCharsets.UTF_8));
        }
        Random random = new Random(20);
        for (int length = 1; length <= 40; length++) {
            byte[] key = new byte[length];
            random.nextBytes(key);
            keys.add(key);
        }
        System.out.println("key,hash,partitions,partition");
        for (byte[] key : keys) {
            String hex = HexFormat.of().formatHex(key);
            for (int count : COUNTS) {
                int chosen = BuiltInPartitioner.partitionForKey(key, count);
                System.out.println(hex + "," + Utils.murmur2(key) + "," + count + "," + chosen);
            }
        }
    }
}
