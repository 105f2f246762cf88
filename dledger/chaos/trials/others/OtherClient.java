// A producer and an orderly consumer of Apache RocketMQ's Java client, for trials of dledger.
//
//     java -cp 'JARS/*' OtherClient.java NAMESRV TOPIC GROUP NAME
//
// What it does is written to standard output, one JSON object a line (dledger/chaos/trials/other_clients.py).
// Standard input: the line "start" begins to send, "stop" ends that. When the input ends, so does the program.
// Times are those of the machine's monotonic clock, in ns.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class OtherClient {
    static final int EVERY_MS = 20, BATCH = 3, BATCH_EVERY = 10, KEYED_EVERY = 3, ORDER_KEYS = 5;
    static final int POLL_MS = 1000;
    static final PrintStream out = System.out;
    static volatile boolean stopped = false;

    static void say(String event, String fields) {
        synchronized (out) {
            out.println("{\"event\":\"" + event + "\"" + fields + "}");
            out.flush();
        }
    }

    static String text(String value) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char letter : String.valueOf(value).toCharArray()) {
            boolean plain = letter >= ' ' && letter <= '~' && letter != '"' && letter != '\\';
            quoted.append(plain ? String.valueOf(letter) : String.format("\\u%04x", (int) letter));
        }
        return quoted.append('"').toString();
    }

    static String body(byte[] bytes) {
        return text(new String(bytes, StandardCharsets.ISO_8859_1));
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // what the client's own logging prints
        String namesrv = args[0], topic = args[1], group = args[2], name = args[3];
        CountDownLatch started = new CountDownLatch(1);
        Thread input = new Thread(() -> {
            try {
                BufferedReader reader = new BufferedReader(new InputStreamReader(System.in));
                for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                    stopped |= line.equals("stop");
                    started.countDown();
                }
            } catch (java.io.IOException error) {
                say("failed", ",\"text\":" + text(error.toString()));
            }
            Runtime.getRuntime().halt(0);
        });
        input.setDaemon(true);
        input.start();
        try {
            consume(namesrv, topic, group, name);
            DefaultMQProducer producer = new DefaultMQProducer(name + "-producers");
            producer.setNamesrvAddr(namesrv);
            producer.setInstanceName(name + "-producer");
            producer.setPollNameServerInterval(POLL_MS);
            producer.start();
            say("ready", "");
            started.await();
            produce(producer, topic, name);
            say("stopped", "");
            Thread.sleep(Long.MAX_VALUE);
        } catch (Throwable error) {
            say("failed", ",\"text\":" + text(error.toString()));
            Runtime.getRuntime().halt(1);
        }
    }

    static void consume(String namesrv, String topic, String group, String name) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(name + "-consumer");
        consumer.setPollNameServerInterval(POLL_MS);
        consumer.setPersistConsumerOffsetInterval(POLL_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                say("received", ",\"queue\":" + message.getQueueId() + ",\"offset\":" + message.getQueueOffset()
                    + ",\"position\":" + message.getCommitLogOffset() + ",\"stored\":" + message.getStoreTimestamp()
                    + ",\"body\":" + body(message.getBody()));
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
    }

    static void produce(DefaultMQProducer producer, String topic, String name) throws Exception {
        for (int turn = 0, count = 0; !stopped; turn++) {
            List<Message> messages = new ArrayList<>();
            StringBuilder bodies = new StringBuilder();
            String first = name + "-" + count;
            for (int left = turn % BATCH_EVERY == 0 ? BATCH : 1; left > 0; left--, count++) {
                String unique = name + "-" + count;
                byte[] bytes = (unique + "|" + ".".repeat(count % 200)).getBytes(StandardCharsets.ISO_8859_1);
                messages.add(new Message(topic, "*", unique, bytes));
                bodies.append(bodies.length() == 0 ? "" : ",").append(body(bytes));
            }
            say("sending", ",\"key\":" + text(first) + ",\"at\":" + System.nanoTime() + ",\"bodies\":[" + bodies + "]");
            String outcome;
            try {
                SendResult result;
                if (messages.size() > 1) {
                    result = producer.send(messages);
                } else if (turn % KEYED_EVERY == 0) {
                    result = producer.send(messages.get(0), (queues, message, key) -> queues.get((int) key % queues.size()),
                        turn % ORDER_KEYS);
                } else {
                    result = producer.send(messages.get(0));
                }
                String word = result.getSendStatus() == SendStatus.SEND_OK ? "acknowledged" : "unknown";
                outcome = ",\"outcome\":\"" + word + "\",\"queue\":" + result.getMessageQueue().getQueueId()
                    + ",\"offset\":" + result.getQueueOffset() + ",\"id\":" + text(result.getOffsetMsgId());
            } catch (Exception error) { // an earlier attempt may have been stored
                outcome = ",\"outcome\":\"unknown\",\"text\":" + text(error.toString());
            }
            say("sent", ",\"key\":" + text(first) + ",\"at\":" + System.nanoTime() + outcome);
            Thread.sleep(EVERY_MS);
        }
    }
}
