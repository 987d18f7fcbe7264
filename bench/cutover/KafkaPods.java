import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Consumers of a Kafka group, a thread each, that join and leave as lines on standard input say.
 *
 * <p>{@code join NAME}, {@code leave NAME}. Each record is a line of the journal, in the same form as that of our pods:
 * partition, generation, owner, key, sequence, began, ended. The other end is {@code bench/cutover/kafka_group.py}.
 *
 * <p>java -cp "kafka/libs/*" KafkaPods.java BOOTSTRAP TOPIC GROUP JOURNAL [PROPERTY=VALUE]...
 */
public final class KafkaPods {
    private static final Duration POLL = Duration.ofMillis(100);

    public static void main(String[] arguments) throws IOException {
        var pods = new KafkaPods(arguments);
        // Linux: the same monotonic clock that the other processes stamp by.
        System.out.println("clock " + System.nanoTime());
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "join" -> pods.join(words[1]);
                case "leave" -> pods.running.get(words[1]).leave();
                default -> throw new IllegalArgumentException(line);
            }
        }
        // The other end is gone, or wants no more.
        System.exit(0);
    }

    private final String topic;
    private final FileOutputStream journal;
    private final Properties properties = new Properties();
    private final Map<String, Pod> running = new ConcurrentHashMap<>();

    private KafkaPods(String[] arguments) throws IOException {
        topic = arguments[1];
        journal = new FileOutputStream(arguments[3], true);
        properties.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        properties.put(ConsumerConfig.GROUP_ID_CONFIG, arguments[2]);
        properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        properties.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class);
        properties.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        for (int number = 4; number < arguments.length; number++) {
            String[] words = arguments[number].split("=", 2);
            properties.put(words[0], words[1]);
        }
        if (!"consumer".equals(properties.get(ConsumerConfig.GROUP_PROTOCOL_CONFIG))) {
            properties.put(
                    ConsumerConfig.PARTITION_ASSIGNMENT_STRATEGY_CONFIG, CooperativeStickyAssignor.class.getName());
        }
    }

    private void join(String name) {
        var pod = new Pod(name);
        running.put(name, pod);
        pod.start();
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private final class Pod extends Thread implements ConsumerRebalanceListener {
        private final Set<TopicPartition> owned = new HashSet<>();
        private volatile KafkaConsumer<String, byte[]> consumer;
        private volatile boolean leaving;

        Pod(String name) {
            super(name);
        }

        @Override
        public void run() {
            var own = new Properties();
            own.putAll(properties);
            own.put(ConsumerConfig.CLIENT_ID_CONFIG, getName());
            try (var made = new KafkaConsumer<String, byte[]>(own)) {
                consumer = made;
                made.subscribe(List.of(topic), this);
                while (!leaving) {
                    ConsumerRecords<String, byte[]> records = made.poll(POLL);
                    int generation = made.groupMetadata().generationId();
                    for (ConsumerRecord<String, byte[]> record : records) {
                        note(record, generation);
                    }
                }
            } catch (WakeupException | IOException ended) {
                say("ended " + getName() + " " + ended);
            }
            say("left " + getName());
        }

        void leave() {
            leaving = true;
            consumer.wakeup();
        }

        private void note(ConsumerRecord<String, byte[]> record, int generation) throws IOException {
            long began = System.nanoTime();
            String sequence = new String(record.value(), StandardCharsets.US_ASCII).strip();
            String line = "[" + record.partition() + "," + generation + ",\"" + getName() + "\",\"" + record.key()
                    + "\"," + sequence + "," + began + "," + System.nanoTime() + "]\n";
            // One write each, so that a kill loses nothing that was done.
            journal.write(line.getBytes(StandardCharsets.US_ASCII));
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            owned.addAll(partitions);
            say("owns " + getName() + " " + owned.size());
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            owned.removeAll(partitions);
            say("owns " + getName() + " " + owned.size());
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            onPartitionsRevoked(partitions);
        }
    }
}
