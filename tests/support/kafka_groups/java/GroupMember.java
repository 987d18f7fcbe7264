import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.StringJoiner;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A member of a Kafka group, or with {@code role=producer} a producer, that says in lines of JSON what happens to it.
 *
 * <p>Its arguments are words {@code name=value}, the same as those of the members in Python; {@code set.NAME=VALUE} gives
 * the client a property of Kafka's. It leaves on SIGTERM. Times are of the clock that Python calls monotonic.
 */
public final class GroupMember {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long RETRY_NANOS = TimeUnit.SECONDS.toNanos(20);

    private final Map<String, String> options;
    private volatile boolean leaving;
    private volatile KafkaConsumer<String, String> consumer;

    private GroupMember(Map<String, String> options) {
        this.options = options;
    }

    public static void main(String[] words) throws InterruptedException {
        Map<String, String> options = new HashMap<>();
        for (String word : words) {
            int at = word.indexOf('=');
            options.put(word.substring(0, at), word.substring(at + 1));
        }
        GroupMember member = new GroupMember(options);
        CountDownLatch done = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            member.leave();
            try {
                done.await(20, TimeUnit.SECONDS);
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }));
        int status = 1;
        try {
            if (options.getOrDefault("role", "consumer").equals("producer")) {
                member.produce();
            } else {
                member.consume();
            }
            status = 0;
        } catch (RuntimeException failure) {
            say("error", "what", quoted(failure.toString()));
        } finally {
            say("closed");
            done.countDown();
        }
        System.exit(status);
    }

    private void leave() {
        leaving = true;
        KafkaConsumer<String, String> running = consumer;
        if (running != null) {
            running.wakeup();
        }
    }

    // --- consuming

    private void consume() {
        consumer = new KafkaConsumer<>(properties(), new StringDeserializer(), new StringDeserializer());
        say("up");
        try {
            consumer.subscribe(List.of(options.get("topics").split(",")), new Listener());
            while (!leaving) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    process(record);
                }
            }
        } catch (WakeupException woken) {
            if (!leaving) {
                throw woken;
            }
        } finally {
            consumer.close();
        }
    }

    private void process(ConsumerRecord<String, String> record) {
        TopicPartition partition = new TopicPartition(record.topic(), record.partition());
        String which = quoted(name(partition));
        say("record", "partition", which, "offset", "" + record.offset(), "key", quoted(record.key()));
        if (!options.getOrDefault("commit", "each").equals("each")) {
            return;
        }
        long next = record.offset() + 1;
        long deadline = System.nanoTime() + RETRY_NANOS;
        while (true) {
            try {
                consumer.commitSync(Map.of(partition, new OffsetAndMetadata(next)));
                say("committed", "partition", which, "offset", "" + next);
                return;
            } catch (WakeupException woken) {
                // Of SIGTERM; it is thrown once, and this commit is wanted all the same.
                leaving = true;
            } catch (KafkaException failure) {
                if (!(failure instanceof RetriableException) || System.nanoTime() > deadline) {
                    String why = quoted(failure.toString());
                    say("refused", "partition", which, "offset", "" + next, "what", why);
                    return;
                }
            }
        }
    }

    private static final class Listener implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            say("assigned", "partitions", names(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            say("revoked", "partitions", names(partitions));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            say("lost", "partitions", names(partitions));
        }
    }

    // --- producing

    private void produce() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", options.get("bootstrap"));
        properties.put("acks", "all");
        long pause = (long) (1e9 / Double.parseDouble(options.getOrDefault("rate", "100")));
        long count = Long.parseLong(options.getOrDefault("count", "1000"));
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            say("up");
            for (long sequence = 0; sequence < count && !leaving; sequence++) {
                String key = "" + sequence;
                producer.send(new ProducerRecord<>(options.get("topics"), key, key), (sent, failure) -> {
                    if (failure != null) {
                        say("error", "what", quoted(failure.toString()));
                        return;
                    }
                    TopicPartition partition = new TopicPartition(sent.topic(), sent.partition());
                    say("sent", "partition", quoted(name(partition)), "offset", "" + sent.offset(), "key", quoted(key));
                });
                java.util.concurrent.locks.LockSupport.parkNanos(pause);
            }
        }
    }

    // --- settings and words

    private Properties properties() {
        Properties properties = new Properties();
        String protocol = options.getOrDefault("protocol", "consumer");
        properties.put("bootstrap.servers", options.get("bootstrap"));
        properties.put("group.id", options.get("group"));
        properties.put("group.protocol", protocol);
        properties.put("client.id", options.getOrDefault("client_id", "java"));
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "" + options.getOrDefault("commit", "each").equals("auto"));
        if (options.containsKey("instance_id")) {
            properties.put("group.instance.id", options.get("instance_id"));
        }
        if (options.containsKey("rack")) {
            properties.put("client.rack", options.get("rack"));
        }
        if (protocol.equals("classic")) {
            int session = (int) (1000 * Double.parseDouble(options.getOrDefault("session", "6")));
            properties.put("session.timeout.ms", "" + session);
            properties.put("heartbeat.interval.ms", "" + session / 6);
        }
        options.forEach((name, value) -> {
            if (name.startsWith("set.")) {
                properties.put(name.substring("set.".length()), value);
            }
        });
        return properties;
    }

    private static synchronized void say(String event, String... pairs) {
        StringBuilder line = new StringBuilder();
        line.append(String.format(Locale.ROOT, "{\"event\":\"%s\",\"at\":%.6f", event, System.nanoTime() / 1e9));
        for (int at = 0; at < pairs.length; at += 2) {
            line.append(",\"").append(pairs[at]).append("\":").append(pairs[at + 1]);
        }
        System.out.println(line.append('}'));
        System.out.flush();
    }

    private static String name(TopicPartition partition) {
        return partition.topic() + "/" + partition.partition();
    }

    private static String names(Collection<TopicPartition> partitions) {
        List<String> sorted = new ArrayList<>();
        partitions.forEach(partition -> sorted.add(quoted(name(partition))));
        sorted.sort(null);
        StringJoiner joined = new StringJoiner(",", "[", "]");
        sorted.forEach(joined::add);
        return joined.toString();
    }

    private static String quoted(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder quoted = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one == '"' || one == '\\') {
                quoted.append('\\').append(one);
            } else if (one < ' ') {
                quoted.append(String.format("\\u%04x", (int) one));
            } else {
                quoted.append(one);
            }
        }
        return quoted.append('"').toString();
    }
}
