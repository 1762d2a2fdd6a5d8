//! An application that changes a table of its own and sends a message in one transaction:
//! `cargo run -p pgbaton --example send -- "$DSN" 42`.
//!
//! `DSN` is that of a role that is a member of `pgbaton_producer` and may update `app.orders`, made by
//! `create table app.orders (id bigint primary key, state text not null)`. It pays for the order and says so.

use pgbaton::send::{NewMessage, Sent, send};
use pgbaton::tokio_postgres::{Client, NoTls};

type Failure = Box<dyn std::error::Error>;

/// Both happen or neither.
async fn pay(client: &mut Client, order: i64) -> Result<Sent, Failure> {
    let transaction = client.transaction().await?;
    // First the lock on what the key stands for, then the message: so messages of one order arrive in the order of commit.
    let update = "update app.orders set state = 'paid' where id = $1";
    if transaction.execute(update, &[&order]).await? == 0 {
        return Err(format!("there is no order {order}").into()); // dropped, a transaction is rolled back
    }
    let message = NewMessage::new("orders.paid").key(order.to_string()).json(format!("{{\"order\": {order}}}"));
    let sent = send(&transaction, &message).await?;
    transaction.commit().await?;
    Ok(sent)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let (Some(dsn), Some(order)) = (arguments.next(), arguments.next()) else {
        return Err("usage: send DSN ORDER".into());
    };
    let (mut client, connection) = pgbaton::tokio_postgres::connect(&dsn, NoTls).await?;
    tokio::spawn(connection);
    let sent = pay(&mut client, order.parse()?).await?;
    println!("order {order} is paid, message {}", sent.message_id);
    Ok(())
}
