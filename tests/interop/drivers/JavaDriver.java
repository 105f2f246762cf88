// Drives Apache RocketMQ's Java client: JavaDriver MODE NAMESRV TOPIC GROUP [POLL_MS]
// One JSON object a line on standard output; ends when standard input closes.
// MODE: produce, rush (as fast as it goes, several at once), consume (push), fails (push; each message fails twice), orderly (push, in order), sql (push, by properties), tags (push, TagB only), broadcast (push), dies (push; all fails, and once again), mixed (sends TagA and TagB in turn), query (by key and by unique key), pull (lite pull), kinds (every way of sending, once), ask and answer (requests and replies), transact (transactions), timers (messages for a time of their own, and recalls).
// Compiles against 4.9 and 5.

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
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
import org.apache.rocketmq.remoting.RPCHook;

public class JavaDriver {
    static final int INTERVAL_MS = 50;
    static final String CONDITION = "number >= 10 AND parity IN ('even') AND missing IS NULL";
    static final AtomicBoolean open = new AtomicBoolean(true);
    static final CountDownLatch closed = new CountDownLatch(1);

    static synchronized void say(String event, String fields) {
        System.out.println("{\"ms\":" + System.currentTimeMillis() + ",\"event\":\"" + event + "\"" + fields + "}");
        System.out.flush();
    }

    static String text(String value) {
        StringBuilder out = new StringBuilder("\"");
        for (char letter : String.valueOf(value).toCharArray()) {
            out.append(letter == '"' || letter == '\\' || letter < ' ' || letter > '~' ? '.' : letter);
        }
        return out.append('"').toString();
    }

    public static void main(String[] args) throws Exception {
        String mode = args[0], namesrv = args[1], topic = args[2], group = args[3];
        int pollMs = args.length > 4 ? Integer.parseInt(args[4]) : 0;
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException error) {
                say("error", ",\"text\":" + text(error.toString()));
            }
            open.set(false);
            closed.countDown();
        });
        input.setDaemon(true);
        input.start();
        try {
            switch (mode) {
                case "produce": produce(producer(namesrv, group, pollMs), topic, false); break;
                case "rush": rush(producer(namesrv, group, pollMs), topic); break;
                case "mixed": produce(producer(namesrv, group, pollMs), topic, true); break;
                case "query": query(producer(namesrv, group, pollMs), topic); break;
                case "kinds": kinds(producer(namesrv, group, pollMs), topic); break;
                case "pull": pull(namesrv, topic, group, pollMs); break;
                case "transact": transact(namesrv, topic, group, pollMs); break;
                case "timers": timers(producer(namesrv, group, pollMs), topic); break;
                case "ask": ask(producer(namesrv, group, pollMs), topic); break;
                case "answer": answer(namesrv, topic, group, pollMs); break;
                case "pop": push(namesrv, topic, group, pollMs, mode, 1, null); break;
                default:
                    push(namesrv, topic, group, pollMs, mode, mode.equals("fails") ? 2 : mode.equals("dies") ? 99 : 0,
                        mode.equals("sql") ? CONDITION : null);
            }
        } catch (Throwable error) {
            say("fatal", ",\"text\":" + text(error.toString()));
        }
        // shutdown() of the clients waits for the network; what was consumed is on its way every five seconds
        Runtime.getRuntime().halt(0);
    }

    // In the environment, where there is one.
    static RPCHook account() {
        String name = System.getenv("ROCKETMQ_ACCESS_KEY"), secret = System.getenv("ROCKETMQ_SECRET_KEY");
        return name == null ? null : new AclClientRPCHook(new SessionCredentials(name, secret));
    }

    static DefaultMQProducer producer(String namesrv, String group, int pollMs) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group, account());
        producer.setNamesrvAddr(namesrv);
        if (pollMs > 0) producer.setPollNameServerInterval(pollMs);
        producer.start();
        say("ready", "");
        return producer;
    }

    static Message message(String topic, int seq) {
        Message message = new Message(topic, "TagA", "key-" + seq, Integer.toString(seq).getBytes());
        message.putUserProperty("number", Integer.toString(seq));
        message.putUserProperty("parity", seq % 2 == 0 ? "even" : "odd");
        return message;
    }

    static void acked(int seq, SendResult result) {
        if (result.getSendStatus() == SendStatus.SEND_OK) {
            say("acked", ",\"seq\":" + seq + ",\"queue\":" + result.getMessageQueue().getQueueId()
                + ",\"offset\":" + result.getQueueOffset());
        } else {
            say("failed", ",\"seq\":" + seq + ",\"text\":" + text(result.getSendStatus().name()));
        }
    }

    // One after another; after a failure the same number again.
    static void produce(DefaultMQProducer producer, String topic, boolean mixed) throws Exception {
        for (int seq = 0; open.get();) {
            try {
                Message next = message(topic, seq);
                if (mixed && seq % 2 == 1) next.setTags("TagB");
                acked(seq, producer.send(next));
                seq++;
            } catch (Exception error) {
                say("failed", ",\"seq\":" + seq + ",\"text\":" + text(error + " " + error.getCause()));
            }
            Thread.sleep(INTERVAL_MS);
        }
    }

    // Of four: after 1.5 s, after 2 s, at a time, at a time as older clients say it. Of eight of version 5 one is recalled.
    static void timers(DefaultMQProducer producer, String topic) throws Exception {
        java.lang.reflect.Method recall = null, handle = null;
        try {
            recall = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
            handle = SendResult.class.getMethod("getRecallHandle");
        } catch (NoSuchMethodException of4) { }
        for (int seq = 0; open.get(); seq++) {
            Message next = message(topic, seq);
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
    static void rush(DefaultMQProducer producer, String topic) throws Exception {
        java.util.concurrent.atomic.AtomicInteger next = new java.util.concurrent.atomic.AtomicInteger();
        java.util.concurrent.atomic.AtomicInteger acked = new java.util.concurrent.atomic.AtomicInteger();
        java.util.concurrent.atomic.AtomicInteger failed = new java.util.concurrent.atomic.AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < 8; number++) {
            Thread thread = new Thread(() -> {
                while (open.get()) {
                    try {
                        producer.send(message(topic, next.getAndIncrement()));
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
    static void transact(String namesrv, String topic, String group, int pollMs) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        if (pollMs > 0) producer.setPollNameServerInterval(pollMs);
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
                acked(seq, producer.sendMessageInTransaction(message(topic, seq), seq));
            } catch (Exception error) {
                say("failed", ",\"seq\":" + seq + ",\"text\":" + text(error.toString()));
            }
            seq++;
            Thread.sleep(INTERVAL_MS);
        }
    }

    // The first ten messages, again and again.
    static void query(DefaultMQProducer producer, String topic) throws Exception {
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
    static void kinds(DefaultMQProducer producer, String topic) throws Exception {
        producer.setSendMsgTimeout(20000);  // JVMs that start together are slow at first
        int seq = 0;
        for (; seq < 20; seq++) acked(seq, producer.send(message(topic, seq)));
        CountDownLatch left = new CountDownLatch(20);
        for (; seq < 40; seq++) {
            final int number = seq;
            producer.send(message(topic, seq), new SendCallback() {
                @Override public void onSuccess(SendResult result) { acked(number, result); left.countDown(); }
                @Override public void onException(Throwable error) {
                    say("failed", ",\"seq\":" + number + ",\"text\":" + text(error.toString()));
                    left.countDown();
                }
            });
        }
        left.await(10, TimeUnit.SECONDS);
        List<Message> batch = new ArrayList<>();
        for (; seq < 60; seq++) batch.add(message(topic, seq));
        SendResult all = producer.send(batch);
        for (int at = 40; at < 60; at++) acked(at, all);
        producer.setCompressMsgBodyOverHowmuch(1000);
        for (; seq < 80; seq++) {
            Message large = message(topic, seq);
            large.setBody(String.format("%d%5000s", seq, "").getBytes());
            acked(seq, producer.send(large));
        }
        for (; seq < 100; seq++) {
            acked(seq, producer.send(message(topic, seq), (queues, item, key) -> queues.get((Integer) key), seq % 2));
        }
        for (; seq < 120; seq++) {
            producer.sendOneway(message(topic, seq));
            say("oneway", ",\"seq\":" + seq);
        }
        say("done", "");
        closed.await();
    }

    static void received(MessageExt item) {
        say("received", ",\"seq\":" + new String(item.getBody()).trim() + ",\"keys\":" + text(item.getKeys())
            + ",\"tag\":" + text(item.getTags()) + ",\"queue\":" + item.getQueueId()
            + ",\"offset\":" + item.getQueueOffset() + ",\"times\":" + item.getReconsumeTimes()
            + ",\"stored\":" + item.getStoreTimestamp());
    }

    static void push(String namesrv, String topic, String group, int pollMs, String mode, int failures,
            String condition) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(account());
        consumer.setConsumerGroup(group);
        consumer.setNamesrvAddr(namesrv);
        if (pollMs > 0) consumer.setPollNameServerInterval(pollMs);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (mode.equals("broadcast")) broadcast(consumer);
        if (mode.equals("dies")) consumer.setMaxReconsumeTimes(1);
        if (condition == null) consumer.subscribe(topic, mode.equals("tags") ? "TagB" : "*");
        else consumer.subscribe(topic, MessageSelector.bySql(condition));
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
                return items.get(0).getReconsumeTimes() < failures
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

    static void pull(String namesrv, String topic, String group, int pollMs) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        if (pollMs > 0) consumer.setPollNameServerInterval(pollMs);
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
    static void ask(DefaultMQProducer producer, String topic) throws Exception {
        for (int seq = 0; open.get(); seq++) {
            try {
                Message reply = producer.request(message(topic, seq), 5000);
                say("replied", ",\"seq\":" + seq + ",\"text\":" + text(new String(reply.getBody())));
            } catch (Exception error) {
                say("failed", ",\"seq\":" + seq + ",\"text\":" + text(error + " " + error.getCause()));
            }
            Thread.sleep(INTERVAL_MS);
        }
    }

    // Answers requests, by a producer of its own.
    static void answer(String namesrv, String topic, String group, int pollMs) throws Exception {
        DefaultMQProducer producer = producer(namesrv, group + "_replies", pollMs);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(account());
        consumer.setConsumerGroup(group);
        consumer.setNamesrvAddr(namesrv);
        if (pollMs > 0) consumer.setPollNameServerInterval(pollMs);
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
