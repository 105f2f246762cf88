// What Apache's strategies of dividing queues give, for tests/client/consuming/allocations.jsonl.
//
// Usage: java Allocations: prints a line of JSON for each case, all from a fixed seed; queues are told by their place.
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

public class Allocations {
    static final String[] ROOMS = {"hz", "sh", "bj"};

    static String room(String name) { return name.split("[@-]")[0]; }

    static AllocateMachineRoomNearby nearby(AllocateMessageQueueStrategy inner) {
        return new AllocateMachineRoomNearby(inner, new AllocateMachineRoomNearby.MachineRoomResolver() {
            @Override public String brokerDeployIn(MessageQueue queue) { return room(queue.getBrokerName()); }
            @Override public String consumerDeployIn(String client) { return room(client); }
        });
    }

    public static void main(String[] arguments) {
        Random random = new Random(17);
        AllocateMessageQueueByMachineRoom machineRoom = new AllocateMessageQueueByMachineRoom();
        machineRoom.setConsumeridcs(new HashSet<>(Arrays.asList("hz", "bj")));
        List<AllocateMessageQueueStrategy> strategies = Arrays.asList(
            new AllocateMessageQueueAveragely(), new AllocateMessageQueueAveragelyByCircle(), machineRoom,
            nearby(new AllocateMessageQueueAveragely()), nearby(new AllocateMessageQueueConsistentHash(3)),
            new AllocateMessageQueueConsistentHash());
        List<String> lines = new ArrayList<>();
        for (int number = 0; number < 40; number++) {
            List<MessageQueue> queues = new ArrayList<>();
            int brokers = 1 + random.nextInt(4);
            for (int broker = 0; broker < brokers; broker++) {
                String name = ROOMS[random.nextInt(3)] + "@broker-" + broker + (random.nextInt(8) == 0 ? "@" : "");
                for (int queue = 0, count = 1 + random.nextInt(9); queue < count; queue++) {
                    queues.add(new MessageQueue(number % 5 == 0 ? "%RETRY%group" : "Topic-" + number, name, queue));
                }
            }
            List<String> clients = new ArrayList<>();
            for (int client = 0, count = 1 + random.nextInt(9); client < count; client++) {
                clients.add(ROOMS[random.nextInt(3)] + "-10.0.0." + random.nextInt(99) + "@" + random.nextInt(99999));
            }
            Collections.sort(queues);
            Collections.sort(clients);
            List<String> results = new ArrayList<>();
            for (AllocateMessageQueueStrategy strategy : strategies) {
                List<String> each = new ArrayList<>();
                for (String client : clients) {
                    List<String> places = new ArrayList<>();
                    for (MessageQueue queue : strategy.allocate("group", client, queues, clients)) {
                        places.add(Integer.toString(queues.indexOf(queue)));
                    }
                    each.add("[" + String.join(",", places) + "]");
                }
                results.add("\"" + strategy.getName() + "\":[" + String.join(",", each) + "]");
            }
            lines.add("{\"queues\":" + text(queues) + ",\"clients\":[\"" + String.join("\",\"", clients)
                + "\"],\"results\":{" + String.join(",", results) + "}}");
        }
        System.out.println(String.join("\n", lines));
        System.exit(0);
    }

    static String text(List<MessageQueue> queues) {
        List<String> texts = new ArrayList<>();
        for (MessageQueue queue : queues) {
            texts.add("[\"" + queue.getTopic() + "\",\"" + queue.getBrokerName() + "\"," + queue.getQueueId() + "]");
        }
        return "[" + String.join(",", texts) + "]";
    }
}
