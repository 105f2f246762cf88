// Drives Apache RocketMQ's Java client: JavaDriver MODE NAMESRV TOPIC GROUP [POLL_MS]
// or many of them, side by side: JavaDriver many NAMESRV MODE:TOPIC:GROUP[:COUNT:INTERVAL_MS],... - [POLL_MS]
// One JSON object a line on standard output, of many with the number of its driver (of); ends when standard input closes.
// MODE: produce, rush (as fast as it goes, several at once), consume (push), fails (push; each message fails twice), outage (push; everything fails for a minute), orderly (push, in order), sql (push, by properties), tags (push, TagB only), broadcast (push), dies (push; all fails, and once again), mixed (sends TagA and TagB in turn), query (by key and by unique key), pull (lite pull), poll (the older pull consumer), kinds (every way of sending, once), ask and answer (requests and replies), transact (transactions), timers (messages for a time of their own, and recalls).
// Compiles against 4.9 and 5.

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

public class JavaDriver {
    static final int INTERVAL_MS = 50, OUTAGE_MS = 60000;
    static final String CONDITION = "number >= 10 AND parity IN ('even') AND missing IS NULL";
    static final AtomicBoolean open = new AtomicBoolean(true);
    static final CountDownLatch closed = new CountDownLatch(1);

    final String namesrv, topic, group, of;
    final int pollMs;
    String instance;
    int count = Integer.MAX_VALUE, intervalMs = INTERVAL_MS;

    JavaDriver(String namesrv, String topic, String group, int pollMs, String of) {
        this.namesrv = namesrv;
        this.topic = topic;
        this.group = group;
        this.pollMs = pollMs;
        this.of = of;
    }

    void say(String event, String fields) {
        synchronized (System.out) {
            System.out.println("{\"ms\":" + System.currentTimeMillis() + ",\"event\":\"" + event + "\"" + of + fields + "}");
            System.out.flush();
        }
    }

    static String text(String value) {
        StringBuilder out = new StringBuilder("\"");
        for (char letter : String.valueOf(value).toCharArray()) {
            out.append(letter == '"' || letter == '\\' || letter < ' ' || letter > '~' ? '.' : letter);
        }
        return out.append('"').toString();
    }

    public static void main(String[] args) throws Exception {
        String namesrv = args[1];
        int pollMs = args.length > 4 ? Integer.parseInt(args[4]) : 0;
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException error) {
                System.out.println(error);
            }
            open.set(false);
            closed.countDown();
        });
        input.setDaemon(true);
        input.start();
        List<Thread> threads = new ArrayList<>();
        if (args[0].equals("many")) {
            java.util.Map<String, Integer> members = new java.util.HashMap<>();
            for (String each : args[2].split(",")) {
                String[] words = each.split(":");
                JavaDriver driver = new JavaDriver(namesrv, words[1], words[2], pollMs, ",\"of\":" + threads.size());
                // One client for all of the process, one more for a group's second member, and one for lite pull: where
                // queues come to that while it starts, as another consumer's rebalance serves it too, it does not pull.
                driver.instance = "many" + ProcessHandle.current().pid() + "_" + members.merge(words[2], 1, Integer::sum)
                    + (words[0].equals("pull") ? words[0] : "");
                if (words.length > 3) {
                    driver.count = Integer.parseInt(words[3]);
                    driver.intervalMs = Integer.parseInt(words[4]);
                }
                threads.add(new Thread(() -> driver.run(words[0])));
            }
        } else {
            JavaDriver driver = new JavaDriver(namesrv, args[2], args[3], pollMs, "");
            threads.add(new Thread(() -> driver.run(args[0])));
        }
        for (Thread thread : threads) thread.start();
        for (Thread thread : threads) thread.join();
        // shutdown() of the clients waits for the network; what was consumed is on its way every five seconds
        Runtime.getRuntime().halt(0);
    }

    void run(String mode) {
        try {
            switch (mode) {
                case "produce": produce(producer(group), false); break;
                case "rush": rush(producer(group)); break;
                case "mixed": produce(producer(group), true); break;
                case "query": query(producer(group)); break;
                case "kinds": kinds(producer(group)); break;
                case "pull": pull(); break;
                case "poll": poll(); break;
                case "transact": transact(); break;
                case "timers": timers(producer(group)); break;
                case "ask": ask(producer(group)); break;
                case "answer": answer(); break;
                default: push(mode);
            }
        } catch (Throwable error) {
            say("fatal", ",\"text\":" + text(error.toString()));
        }
    }

    // Of every client: where, and as whom.
    <T extends org.apache.rocketmq.client.ClientConfig> T configured(T client) {
        client.setNamesrvAddr(namesrv);
        if (pollMs > 0) client.setPollNameServerInterval(pollMs);
        if (instance != null) client.setInstanceName(instance);
        return client;
    }

    // In the environment, where there is one.
    static RPCHook account() {
        String name = System.getenv("ROCKETMQ_ACCESS_KEY"), secret = System.getenv("ROCKETMQ_SECRET_KEY");
        return name == null ? null : new AclClientRPCHook(new SessionCredentials(name, secret));
    }

    DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer producer = configured(new DefaultMQProducer(group, account()));
        producer.start();
        say("ready", "");
        return producer;
    }

    Message message(int seq) {
        Message message = new Message(topic, "TagA", "key-" + seq, Integer.toString(seq).getBytes());
        message.putUserProperty("number", Integer.toString(seq));
        message.putUserProperty("parity", seq % 2 == 0 ? "even" : "odd");
        return message;
    }

    void acked(int seq, SendResult result) {
        if (result.getSendStatus() == SendStatus.SEND_OK) {
            say("acked", ",\"seq\":" + seq + ",\"queue\":" + result.getMessageQueue().getQueueId()
                + ",\"offset\":" + result.getQueueOffset());
        } else {
            say("failed", ",\"seq\":" + seq + ",\"text\":" + text(result.getSendStatus().name()));
        }
    }

    // One after another; after a failure the same number again.
    void produce(DefaultMQProducer producer, boolean mixed) throws Exception {
        for (int seq = 0; seq < count && open.get();) {
            try {
                Message next = message(seq);
                if (mixed && seq % 2 == 1) next.setTags("TagB");
                acked(seq, producer.send(next));
                seq++;
            } catch (Exception error) {
                say("failed", ",\"seq\":" + seq + ",\"text\":" + text(error + " " + error.getCause()));
            }
            Thread.sleep(intervalMs);
        }
        say("done", "");
        closed.await();
    }

    // Of four: after 1.5 s, after 2 s, at a time, at a time as older clients say it. Of eight of version 5 one is recalled.
    void timers(DefaultMQProducer producer) throws Exception {
        java.lang.reflect.Method recall = null, handle = null;
        try {
            recall = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
            handle = SendResult.class.getMethod("getRecallHandle");
        } catch (NoSuchMethodException of4) { }
        for (int seq = 0; open.get(); seq++) {
            Message next = message(seq);
            long due = System.currentTimeMillis() + (seq % 4 == 0 ? 1500 : 2000);
            timed(next, seq % 4, due);
            try {
                SendResult result = producer.send(next);
                say("acked", ",\"seq\":" + seq + ",\"due\":" + due);
                if (recall != null && seq % 8 == 5) {
                    Object id = recall.invoke(producer, topic, handle.invoke(result));
                    say("recalled", ",\"seq\":" + seq + ",\"same\":" + result.getMsgId().equals(id));
                }
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                say("failed", ",\"seq\":" + seq + ",\"text\":" + text(cause.toString()));
            }
            Thread.sleep(INTERVAL_MS);
        }
    }

    static void timed(Message message, int kind, long due) throws Exception {
        String[] names = {"setDelayTimeMs", "setDelayTimeSec", "setDeliverTimeMs"};
        long[] values = {1500, 2, due};
        if (kind < 3) {
            try {
                Message.class.getMethod(names[kind], long.class).invoke(message, values[kind]);
                return;
            } catch (NoSuchMethodException of4) { }
        }
        String[] properties = {"TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "__STARTDELIVERTIME"};
        message.putUserProperty(properties[kind], Long.toString(kind < 3 ? values[kind] : due));
    }

    // Eight threads, each message once: what the client repeats it repeats by itself. Counts, once a second.
    void rush(DefaultMQProducer producer) throws Exception {
        java.util.concurrent.atomic.AtomicInteger next = new java.util.concurrent.atomic.AtomicInteger();
        java.util.concurrent.atomic.AtomicInteger acked = new java.util.concurrent.atomic.AtomicInteger();
        java.util.concurrent.atomic.AtomicInteger failed = new java.util.concurrent.atomic.AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < 8; number++) {
            Thread thread = new Thread(() -> {
                while (open.get()) {
                    try {
                        producer.send(message(next.getAndIncrement()));
                        acked.incrementAndGet();
                    } catch (Exception error) {
                        failed.incrementAndGet();
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        while (open.get()) {
            Thread.sleep(1000);
            say("rushed", ",\"acked\":" + acked.get() + ",\"failed\":" + failed.get());
        }
        for (Thread thread : threads) thread.join();
    }

    // Of four: committed, rolled back, committed and rolled back when asked for the second time.
    void transact() throws Exception {
        TransactionMQProducer producer = configured(new TransactionMQProducer(group));
        producer.setHeartbeatBrokerInterval(1000);
        java.util.Map<String, Integer> asked = new java.util.concurrent.ConcurrentHashMap<>();
        producer.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message item, Object seq) {
                switch ((Integer) seq % 4) {
                    case 0: return LocalTransactionState.COMMIT_MESSAGE;
                    case 1: return LocalTransactionState.ROLLBACK_MESSAGE;
                    default: return LocalTransactionState.UNKNOW;
                }
            }
            @Override public LocalTransactionState checkLocalTransaction(MessageExt item) {
                int seq = Integer.parseInt(new String(item.getBody()));
                int times = asked.merge(item.getTransactionId(), 1, Integer::sum);
                say("checked", ",\"seq\":" + seq + ",\"times\":" + times + ",\"topic\":" + text(item.getTopic())
                    + ",\"queue\":" + item.getQueueId());
                if (seq % 4 > 1 && times < 2) return LocalTransactionState.UNKNOW;
                return seq % 2 == 0 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        producer.start();
        say("ready", "");
        for (int seq = 0; open.get();) {
            try {
                acked(seq, producer.sendMessageInTransaction(message(seq), seq));
            } catch (Exception error) {
                say("failed", ",\"seq\":" + seq + ",\"text\":" + text(error.toString()));
            }
            seq++;
            Thread.sleep(INTERVAL_MS);
        }
    }

    // The first ten messages, again and again.
    void query(DefaultMQProducer producer) throws Exception {
        for (int round = 0; open.get(); round++) {
            int seq = round % 10;
            try {
                for (MessageExt item : producer.queryMessage(topic, "key-" + seq, 32, 0, Long.MAX_VALUE).getMessageList()) {
                    say("found", ",\"seq\":" + new String(item.getBody()) + ",\"asked\":" + seq);
                    MessageExt same = producer.viewMessage(topic, item.getMsgId());
                    say("viewed", ",\"seq\":" + new String(same.getBody()) + ",\"asked\":" + seq);
                }
            } catch (Exception error) {
                say("failed", ",\"seq\":" + seq + ",\"text\":" + text(error + " " + error.getCause()));
            }
            Thread.sleep(INTERVAL_MS);
        }
    }

    // 20 each: synchronous, asynchronous, a batch, compressed, to a chosen queue, one way.
    void kinds(DefaultMQProducer producer) throws Exception {
        producer.setSendMsgTimeout(20000);  // JVMs that start together are slow at first
        int seq = 0;
        for (; seq < 20; seq++) acked(seq, producer.send(message(seq)));
        CountDownLatch left = new CountDownLatch(20);
        for (; seq < 40; seq++) {
            final int number = seq;
            producer.send(message(seq), new SendCallback() {
                @Override public void onSuccess(SendResult result) { acked(number, result); left.countDown(); }
                @Override public void onException(Throwable error) {
                    say("failed", ",\"seq\":" + number + ",\"text\":" + text(error.toString()));
                    left.countDown();
                }
            });
        }
        left.await(10, TimeUnit.SECONDS);
        List<Message> batch = new ArrayList<>();
        for (; seq < 60; seq++) batch.add(message(seq));
        SendResult all = producer.send(batch);
        for (int at = 40; at < 60; at++) acked(at, all);
        producer.setCompressMsgBodyOverHowmuch(1000);
        for (; seq < 80; seq++) {
            Message large = message(seq);
            large.setBody(String.format("%d%5000s", seq, "").getBytes());
            acked(seq, producer.send(large));
        }
        for (; seq < 100; seq++) {
            acked(seq, producer.send(message(seq), (queues, item, key) -> queues.get((Integer) key), seq % 2));
        }
        for (; seq < 120; seq++) {
            producer.sendOneway(message(seq));
            say("oneway", ",\"seq\":" + seq);
        }
        say("done", "");
        closed.await();
    }

    void received(MessageExt item) {
        say("received", ",\"seq\":" + new String(item.getBody()).trim() + ",\"keys\":" + text(item.getKeys())
            + ",\"tag\":" + text(item.getTags()) + ",\"queue\":" + item.getQueueId()
            + ",\"offset\":" + item.getQueueOffset() + ",\"times\":" + item.getReconsumeTimes()
            + ",\"stored\":" + item.getStoreTimestamp());
    }

    void push(String mode) throws Exception {
        int failures = mode.equals("fails") ? 2 : mode.equals("dies") ? 99 : mode.equals("pop") ? 1 : 0;
        AtomicLong outageEnds = new AtomicLong(mode.equals("outage") ? Long.MAX_VALUE : 0);
        DefaultMQPushConsumer consumer = configured(new DefaultMQPushConsumer(account()));
        consumer.setConsumerGroup(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (mode.equals("broadcast")) broadcast(consumer);
        if (mode.equals("dies")) consumer.setMaxReconsumeTimes(1);
        if (mode.equals("sql")) consumer.subscribe(topic, MessageSelector.bySql(CONDITION));
        else consumer.subscribe(topic, mode.equals("tags") ? "TagB" : "*");
        if (instance != null) {  // they are many
            consumer.setConsumeThreadMin(4);
            consumer.setConsumeThreadMax(4);
        }
        // Of version 5: brokers say which queues it has, and whether it pops them.
        if (mode.equals("pop")) consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        if (mode.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (items, context) -> {
                for (MessageExt item : items) received(item);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (items, context) -> {
                for (MessageExt item : items) received(item);
                long now = System.currentTimeMillis();
                outageEnds.compareAndSet(Long.MAX_VALUE, now + OUTAGE_MS);
                return now < outageEnds.get() || items.get(0).getReconsumeTimes() < failures
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        say("ready", "");
        closed.await();
        consumer.shutdown();
    }

    // Versions 4 and 5 have the enumeration in different packages.
    static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (!method.getName().equals("setMessageModel")) continue;
            for (Object model : method.getParameterTypes()[0].getEnumConstants()) {
                if (((Enum<?>) model).name().equals("BROADCASTING")) method.invoke(consumer, model);
            }
        }
    }

    // Queue after queue, by offsets of its own.
    void poll() throws Exception {
        DefaultMQPullConsumer consumer = configured(new DefaultMQPullConsumer(group));
        consumer.start();
        say("ready", "");
        java.util.Map<MessageQueue, Long> reached = new java.util.HashMap<>();
        while (open.get()) {
            try {
                for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                    PullResult result = consumer.pull(queue, "*", reached.getOrDefault(queue, 0L), 32);
                    reached.put(queue, result.getNextBeginOffset());
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        for (MessageExt item : result.getMsgFoundList()) received(item);
                    }
                }
            } catch (Exception error) {
                say("failed", ",\"text\":" + text(error + " " + error.getCause()));
            }
            Thread.sleep(4 * INTERVAL_MS);
        }
        consumer.shutdown();
    }

    void pull() throws Exception {
        DefaultLitePullConsumer consumer = configured(new DefaultLitePullConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        say("ready", "");
        while (open.get()) {
            for (MessageExt item : consumer.poll(500)) received(item);
        }
        consumer.commitSync();
        consumer.shutdown();
    }

    // Requests one after another; after a failure the next number.
    void ask(DefaultMQProducer producer) throws Exception {
        for (int seq = 0; open.get(); seq++) {
            try {
                Message reply = producer.request(message(seq), 5000);
                say("replied", ",\"seq\":" + seq + ",\"text\":" + text(new String(reply.getBody())));
            } catch (Exception error) {
                say("failed", ",\"seq\":" + seq + ",\"text\":" + text(error + " " + error.getCause()));
            }
            Thread.sleep(INTERVAL_MS);
        }
    }

    // Answers requests, by a producer of its own.
    void answer() throws Exception {
        DefaultMQProducer producer = producer(group + "_replies");
        DefaultMQPushConsumer consumer = configured(new DefaultMQPushConsumer(account()));
        consumer.setConsumerGroup(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (items, context) -> {
            for (MessageExt item : items) {
                received(item);
                try {
                    byte[] body = ("re: " + new String(item.getBody())).getBytes();
                    producer.send(MessageUtil.createReplyMessage(item, body), 3000);
                } catch (Exception error) {
                    say("failed", ",\"seq\":" + new String(item.getBody()) + ",\"text\":" + text(error.toString()));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        say("ready", "");
        closed.await();
        consumer.shutdown();
    }
}
