// Drives npm `ali-ons`: node ali.js produce|rush|consume|sql|tags|broadcast|dies NAMESRV TOPIC GROUP MODULES
// One JSON object a line on standard output; ends when standard input closes.
'use strict';

const [ mode, nameSrv, topic, group, modules ] = process.argv.slice(2);
const { createRequire } = require('module');
const load = createRequire(modules + '/');
const httpclient = load('urllib');
const { Producer, Consumer, Message } = load('ali-ons');

const INTERVAL_MS = 50;
const CONDITION = "number >= 10 AND parity IN ('even') AND missing IS NULL";
const quiet = { info() {}, debug() {}, warn() {}, error() {} };
const say = event => process.stdout.write(JSON.stringify(Object.assign({ ms: Date.now() }, event)) + '\n');
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
const { ROCKETMQ_ACCESS_KEY: accessKey, ROCKETMQ_SECRET_KEY: secretKey } = process.env;
const account = accessKey ? { accessKey, secretKey } : {};
let open = true;

process.stdin.on('end', () => { open = false; setTimeout(() => process.exit(0), 500); });
process.stdin.resume();

async function produce() {
  const producer = new Producer({ httpclient, nameSrv, producerGroup: group, logger: quiet, ...account });
  producer.on('error', error => say({ event: 'error', text: String(error.message) }));
  await producer.ready();
  say({ event: 'ready' });
  for (let seq = 0; open;) {
    try {
      const message = new Message(topic, 'TagA', String(seq));
      message.keys = [ 'key-' + seq ];
      message.properties.number = String(seq);
      message.properties.parity = seq % 2 ? 'odd' : 'even';
      const result = await producer.send(message);
      if (result.sendStatus !== 'SEND_OK') throw new Error(result.sendStatus);
      say({ event: 'acked', seq, id: result.msgId });
      seq++;
    } catch (error) {
      say({ event: 'failed', seq, text: String(error.message) });
    }
    await sleep(INTERVAL_MS);
  }
}

// Eight at once, each message once: what the client repeats it repeats by itself. Counts, once a second.
async function rush() {
  const producer = new Producer({ httpclient, nameSrv, producerGroup: group, logger: quiet });
  producer.on('error', () => {});
  await producer.ready();
  say({ event: 'ready' });
  let seq = 0, acked = 0, failed = 0;
  setInterval(() => say({ event: 'rushed', acked, failed }), 1000);
  await Promise.all(Array.from({ length: 8 }, async () => {
    while (open) {
      try {
        const message = new Message(topic, 'TagA', String(seq++));
        const result = await producer.send(message);
        if (result.sendStatus !== 'SEND_OK') throw new Error(result.sendStatus);
        acked++;
      } catch (error) {
        failed++;
        await sleep(1);
      }
    }
  }));
}

async function consume() {
  const consumer = new Consumer({ httpclient, nameSrv, consumerGroup: group, logger: quiet, ...account,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', isBroadcast: mode === 'broadcast',
    maxReconsumeTimes: mode === 'dies' ? 1 : 16 });
  consumer.on('error', error => say({ event: 'error', text: String(error.message) }));
  const wanted = mode === 'sql' ? { subString: CONDITION, expressionType: 'SQL92' } : mode === 'tags' ? 'TagB' : '*';
  consumer.subscribe(topic, wanted, async message => {
    say({ event: 'received', seq: Number(message.body.toString()), keys: message.keys, tag: message.tags,
      times: message.reconsumeTimes });
    if (mode === 'dies') throw new Error('always');
  });
  await consumer.ready();
  say({ event: 'ready' });
}

({ produce, rush }[mode] || consume)().catch(error => {
  say({ event: 'fatal', text: String(error.stack) });
  process.exit(1);
});
